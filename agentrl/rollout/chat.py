"""Token in, token out: messages become token ids once, and sampled ids are never encoded again.

A `ChatRenderer` speaks the project's vocabulary in front of any renderer of the `renderers` library: ChatML is ours
(`chatml.py`), other model families are the library's own, and a user's plug-in is named by its import path.

    opening = chat.render_opening(messages, tools)          # ends with the generation prompt
    sampled = ... the engine samples, the stop token included ...
    prompt  = chat.extend(opening, sampled, new_messages)   # == opening + sampled + bridge tokens, byte for byte
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renderers.base import MODEL_RENDERER_MAP, ParsedToolCall, Renderer, create_renderer
from renderers.configs import CustomRendererConfig, _config_class_for

from agentrl.rollout.chatml import CHAT_TEMPLATE, IM_END, IM_START, ChatMLRenderer
from agentrl.rollout.tool_calls import check_arguments, format_calls, parse_turn
from envs.contract import AssistantMessage, Message, ParseStatus, ToolCall

__all__ = ["CHAT_TEMPLATE", "ChatRenderer", "make_renderer"]

#: stands before a turn that is rendered alone, for renderers that look at what precedes it
_PROBE = Message("user", "?")


class ChatRenderer:
    """Messages to token ids and back, for one tokenizer.

    stop_token_ids:        ids that end an assistant turn; the first is the template's own close.
    generation_prompt_ids: what the template puts before an assistant turn.
    """

    def __init__(self, tokenizer: Any, renderer: Renderer) -> None:
        self.tokenizer, self.renderer = tokenizer, renderer
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        closed = self._render([_PROBE], generation_prompt=False)
        self._probe_ids = self._render([_PROBE], generation_prompt=True)
        self.generation_prompt_ids: list[int] = self._probe_ids[len(closed) :]

    def render_opening(self, messages: Sequence[Message], tools: Sequence[dict] = ()) -> list[int]:
        """The prompt of the first turn: messages, tool schemas (OpenAI's function format) and the generation prompt."""
        return self._render(messages, tools, generation_prompt=True)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict] = (),
    ) -> list[int] | None:
        """The next turn's prompt: `prompt_ids + completion_ids + bridge tokens`.

        None when the template rewrites history, so that no such list exists: render the whole dialogue anew and start
        a new training sample.  A completion without a stop token was cut: its close then stands in the bridge.
        """
        kept = [*prompt_ids, *completion_ids]
        messages = [_to_library(message) for message in new_messages]
        bridged = self.renderer.bridge_to_next_turn(
            list(prompt_ids), list(completion_ids), messages, tools=_schemas(tools)
        )
        if bridged is None or bridged.token_ids[: len(kept)] != kept:
            return None
        return bridged.token_ids

    def bridge(self, new_messages: Sequence[Message], *, closed: bool = True) -> list[int]:
        """The tokens between one assistant turn and the next; `closed` says that the turn ended with a stop token.

        Raises ValueError for a template that rewrites history here; use `extend` with it.
        """
        turn = [self.stop_token_ids[0]] if closed else self.generation_prompt_ids[-1:]
        prompt = self.extend(self._probe_ids, turn, new_messages)
        if prompt is None:
            raise ValueError(f"{type(self.renderer).__name__} rewrites history and has no bridge for these messages")
        return prompt[len(self._probe_ids) + len(turn) :]

    def render_assistant(self, message: AssistantMessage) -> list[int]:
        """An assistant turn that was not sampled, as ids: after the generation prompt, up to and with the stop token.

        A malformed call goes in as the raw text it was written as.  A truncated message gets no stop token.
        """
        ids = self._render([_PROBE, message], generation_prompt=False)
        if ids[: len(self._probe_ids)] != self._probe_ids:
            raise ValueError(f"{type(self.renderer).__name__} does not render a turn behind its own generation prompt")
        ids = ids[len(self._probe_ids) :]
        stops = [at for at, token in enumerate(ids) if token in self.stop_token_ids]
        if not stops:
            raise ValueError(f"{type(self.renderer).__name__} rendered an assistant turn without a stop token")
        return ids[: stops[-1]] if message.truncated else ids[: stops[-1] + 1]

    def parse(self, token_ids: Sequence[int], prompt_ids: Sequence[int] | None = None) -> AssistantMessage:
        """The action that sampled ids mean.  Never raises.  Without a stop token at its end the turn was truncated."""
        ids = list(token_ids)
        truncated = not ids or ids[-1] not in self.stop_token_ids
        try:
            parsed = self.renderer.parse_response(ids, prompt_ids=None if prompt_ids is None else list(prompt_ids))
        except (ValueError, RecursionError, TypeError, AttributeError):
            # The library's parsers expect JSONDecodeError alone, and an object where a model may write a list.
            turn = parse_turn(self.text(ids))
            return AssistantMessage(turn.content, turn.tool_calls, turn.reasoning, truncated)
        calls = tuple(_from_library(call) for call in parsed.tool_calls)
        return AssistantMessage(parsed.content.strip(), calls, parsed.reasoning_content or "", truncated)

    def text(self, token_ids: Sequence[int]) -> str:
        """The turn as text, as written, without the stop token."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _render(
        self, messages: Sequence[Message | AssistantMessage], tools: Sequence[dict] = (), *, generation_prompt: bool
    ) -> list[int]:
        plain = [_to_library(message) for message in messages]
        return list(self.renderer.render_ids(plain, tools=_schemas(tools), add_generation_prompt=generation_prompt))


def make_renderer(tokenizer: Any, name: str = "auto") -> ChatRenderer:
    """The renderer that a job names: `chatml`, a family of the renderers library, an import path, or `auto`.

    `auto` takes the library's renderer for a model that it knows by name, and ChatML for a tokenizer with ChatML's
    tokens.
    Raises ValueError naming the tokenizer and the choices.
    """
    if name == "auto":
        name = _guess(tokenizer)
    if name == "chatml":
        return ChatRenderer(tokenizer, ChatMLRenderer(tokenizer))
    plain = _TextIsText(tokenizer)
    if "." in name and (":" in name or "/" in name or name.rpartition(".")[2][:1].isupper()):
        return ChatRenderer(tokenizer, create_renderer(plain, CustomRendererConfig(import_path=name)))
    try:
        config: Any = _config_class_for(name)()
    except (KeyError, ValueError) as error:
        families = sorted({"chatml", *MODEL_RENDERER_MAP.values()})
        raise ValueError(f"student.renderer {name!r} is not known; known are auto, {', '.join(families)}") from error
    return ChatRenderer(tokenizer, create_renderer(plain, config))


def _guess(tokenizer: Any) -> str:
    known = MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))
    if known is not None:
        return known
    vocabulary = tokenizer.get_vocab()
    if IM_START in vocabulary and IM_END in vocabulary:
        return "chatml"
    raise ValueError(
        f"student.renderer is auto, and the model {getattr(tokenizer, 'name_or_path', '')!r} is neither known by name "
        f"nor a ChatML one; name its family: {', '.join(sorted(set(MODEL_RENDERER_MAP.values())))}"
    )


class _TextIsText:
    """A tokenizer under which a special token that a message contains is plain text, for the library's renderers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return self._tokenizer.encode(text, *args, **{**kwargs, "split_special_tokens": True})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tokenizer(*args, **{**kwargs, "split_special_tokens": True})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _schemas(tools: Sequence[dict]) -> Any:
    return list(tools) or None


def _to_library(message: Message | AssistantMessage) -> Any:
    calls = message.tool_calls
    content = message.content
    if any(call.status is not ParseStatus.OK for call in calls):
        written = format_calls(calls)
        content, calls = (f"{content}\n{written}" if content else written), ()
    plain: dict[str, Any] = {"role": getattr(message, "role", "assistant"), "content": content}
    if calls:
        plain["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    if isinstance(message, AssistantMessage) and message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if isinstance(message, Message) and message.name:
        plain["name"] = message.name
    return plain


def _from_library(call: ParsedToolCall) -> ToolCall:
    status = ParseStatus.OK if call.status == "unknown_tool" else ParseStatus(call.status.value)
    if status is ParseStatus.OK:
        status = check_arguments(call.arguments)
    arguments = call.arguments if status is ParseStatus.OK and isinstance(call.arguments, dict) else None
    return ToolCall(call.name if isinstance(call.name, str) else "", arguments, status, call.raw)
