"""ChatML (`<|im_start|>role ... <|im_end|>`) in the plug-in form of the `renderers` library.

For SmolLM2, Qwen2.5 and every model whose tokenizer has the two ChatML tokens.  Tools, calls and tool results are
written as Qwen2.5 writes them.  `CHAT_TEMPLATE` is the jinja template that renders the same bytes: save it with a
model trained here.

Text is encoded with `split_special_tokens`: a control token that a user types is text.  No history is ever
rewritten, so that a conversation is one growing list of token ids.  No default system message is added.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from renderers.base import Message, ParsedResponse, ParsedToolCall, RenderedTokens, ToolCallParseStatus, ToolSpec
from renderers.base import extract_message_tool_names as _tool_names
from renderers.configs import BaseRendererConfig

from agentrl.rollout.tool_calls import CLOSE, OPEN, THINK, THINK_END, format_call, parse_turn

IM_START, IM_END = "<|im_start|>", "<|im_end|>"

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    f"{OPEN}{CLOSE} XML tags:\n{OPEN}\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n'
    f"{CLOSE}"
)

CHAT_TEMPLATE = """\
{%- set first_is_system = messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if first_is_system %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- @HEAD@ }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- @TAIL@ + '<|im_end|>\\n' }}
{%- elif first_is_system %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": ' + (call.name | tojson) + ', "arguments": ' }}
            {{- (call.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""".replace("@HEAD@", json.dumps(TOOLS_HEAD)).replace("@TAIL@", json.dumps(TOOLS_TAIL))


class ChatMLConfig(BaseRendererConfig):
    """Nothing to set."""

    name: Literal["chatml"] = "chatml"


class ChatMLRenderer:
    """Messages to token ids and back.  Raises ValueError for a tokenizer without the two ChatML tokens."""

    config_class: ClassVar[type[BaseRendererConfig]] = ChatMLConfig
    is_prefix_stable = True

    def __init__(self, tokenizer: Any, config: BaseRendererConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self.config = config or ChatMLConfig()
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in (IM_START, IM_END) if token not in vocabulary]
        if missing:
            raise ValueError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no token {' and no '.join(missing)}: "
                "it is not a ChatML model; set student.renderer to its family's renderer"
            )
        self._controls = {token: vocabulary[token] for token in (IM_START, IM_END)}
        eos = tokenizer.eos_token_id
        self._stops: list[int] = list(dict.fromkeys([self._controls[IM_END], *([] if eos is None else [eos])]))

    def render(
        self, messages: list[Message], *, tools: list[ToolSpec] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        if not messages:
            raise ValueError("no messages to render")
        out = _Stream(self._tokenizer, self._controls)
        rest = 0
        if tools or messages[0].get("role") == "system":
            system = str(messages[0]["content"]) if messages[0].get("role") == "system" else None
            rest = 0 if system is None else 1
            out.block("system", _system_text(system, tools), message=rest - 1)
        self._render_messages(out, messages, rest)
        if add_generation_prompt:
            out.generation_prompt()
        return out.tokens(messages)

    def render_ids(
        self, messages: list[Message], *, tools: list[ToolSpec] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
    ) -> RenderedTokens | None:
        """The previous ids as they are, then what the template puts between turns.

        That is: the close that a cut turn lacks, the separator, the new messages, the generation prompt.  `tools` stand
        in the opening already.
        """
        if any(message.get("role") == "assistant" for message in new_messages):
            return None
        out = _Stream(self._tokenizer, self._controls)
        out.ids = [*previous_prompt_ids, *previous_completion_ids]
        out.owners, out.sampled = [-1] * len(out.ids), [False] * len(out.ids)
        if not previous_completion_ids or previous_completion_ids[-1] not in self._stops:
            out.control(IM_END, -1)
        out.text("\n", -1)
        self._render_messages(out, new_messages, 0)
        out.generation_prompt()
        return out.tokens(new_messages)

    def parse_response(
        self, token_ids: list[int], *, tools: list[ToolSpec] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        end = len(token_ids)
        while end and token_ids[end - 1] in self._stops:
            end -= 1
        text = self._tokenizer.decode(token_ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        turn = parse_turn(text)
        calls = [
            ParsedToolCall(c.raw, c.name or None, c.arguments, status=ToolCallParseStatus(c.status.value))
            for c in turn.tool_calls
        ]
        return ParsedResponse(turn.content, turn.reasoning or None, calls, turn.reasoning_closed)

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stops)

    def _render_messages(self, out: _Stream, messages: list[Message], start: int) -> None:
        at = start
        while at < len(messages):
            message, role = messages[at], messages[at].get("role")
            if role == "tool":
                end = at
                while end < len(messages) and messages[end].get("role") == "tool":
                    end += 1
                results = "".join(f"\n<tool_response>\n{m['content']}\n</tool_response>" for m in messages[at:end])
                out.control(IM_START, at)
                out.text(f"user{results}", at)
                out.control(IM_END, at)
                out.text("\n", at)
                at = end
                continue
            if role == "assistant":
                out.control(IM_START, at)
                out.text("assistant\n", at)
                out.text(_assistant_text(message), at, sampled=True)
                out.control(IM_END, at, sampled=True)
                out.text("\n", at)
            elif role in ("system", "user"):
                out.block(role, str(message["content"]), at)
            else:
                raise ValueError(f"message {at} has role {role!r}; ChatML knows system, user, assistant and tool")
            at += 1


class _Stream:
    """Growing token ids with the message that owns each (-1: none) and whether a model would have sampled it."""

    def __init__(self, tokenizer: Any, controls: dict[str, int]) -> None:
        self._tokenizer, self._controls = tokenizer, controls
        self.ids: list[int] = []
        self.owners: list[int] = []
        self.sampled: list[bool] = []

    def control(self, token: str, message: int, *, sampled: bool = False) -> None:
        self._append([self._controls[token]], message, sampled)

    def text(self, text: str, message: int, *, sampled: bool = False) -> None:
        if text:
            ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            self._append(ids, message, sampled)

    def block(self, role: str, content: str, message: int) -> None:
        self.control(IM_START, message)
        self.text(f"{role}\n{content}", message)
        self.control(IM_END, message)
        self.text("\n", message)

    def generation_prompt(self) -> None:
        self.control(IM_START, -1)
        self.text("assistant\n", -1)

    def tokens(self, messages: list[Message]) -> RenderedTokens:
        roles = [str(message.get("role") or "") for message in messages]
        return RenderedTokens(
            self.ids, self.owners, self.sampled, message_roles=roles, message_tool_names=_tool_names(messages)
        )

    def _append(self, ids: list[int], message: int, sampled: bool) -> None:
        self.ids += ids
        self.owners += [message] * len(ids)
        self.sampled += [sampled] * len(ids)


def _system_text(system: str | None, tools: list[ToolSpec] | None) -> str:
    if not tools:
        return system or ""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return ("" if system is None else system + "\n\n") + TOOLS_HEAD + listed + TOOLS_TAIL


def _assistant_text(message: Message) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    text = f"{THINK}\n{reasoning}\n{THINK_END}\n\n" if reasoning else ""
    text += str(message.get("content") or "")
    calls: list[Any] = [call.get("function") or call for call in message.get("tool_calls") or []]
    written = "\n".join(format_call(str(call["name"]), _as_object(call["arguments"])) for call in calls)
    return text + ("\n" if message.get("content") and written else "") + written


def _as_object(arguments: Any) -> Any:
    """OpenAI's messages carry arguments as a JSON string, Hugging Face's as an object."""
    return json.loads(arguments) if isinstance(arguments, str) else arguments
