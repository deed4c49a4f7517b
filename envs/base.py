"""What every dialogue environment shares: turns, calls, rewards, labels of form, snapshots, the expert's plan.

A subclass keeps its episode in `self.state`, a tree of plain JSON values, and says how the world behaves (the methods
under "Override these": all that a newcomer has to read; docs/environments.md has an example).  Nothing is drawn at
random after `reset`, so the future depends on the state and the actions alone.

What is here is the order in which a turn happens.  `calls` reads tool calls, `planning` finds the steps left by playing
the expert on a copy of the state, `rewards` adds up, `splits` chooses the task, `snapshots` writes an episode down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from envs import snapshots
from envs.calls import FORM_ERRORS, CallReader, Language, Tool, ToolDown, ToolError, canonical_json
from envs.contract import (
    ActionSpace,
    Advice,
    AgentEnv,
    AssistantMessage,
    Label,
    Level,
    Message,
    MessageSpace,
    ToolCall,
)
from envs.planning import Plan
from envs.rewards import MALFORMED, Rewards
from envs.splits import choose, find_task

ORDER = {label: position for position, label in enumerate(Label)}


class DialogueEnv(AgentEnv):
    """Override `levels`, `errors`, `inject` and what stands under "Override these".

    In them, `self.level`, `self.task` (what `make_task` returned: read only), `self.tools`, `self.language` and
    `self.state` (yours, plain JSON) describe the episode.  The wording of an episode may vary with `self.style`, a
    number drawn at reset.
    """

    # ---- Override these ------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def tools_for(cls, level: Level, language: Language) -> dict[str, Tool]:
        """The tools of a level by name.  Asked once for each pair and kept."""

    @classmethod
    @abstractmethod
    def make_task(cls, level: Level, rng: random.Random) -> dict[str, Any]:
        """A semantic task, free of language and wording, as plain JSON; its `signature` (str) says its meaning."""

    def enter(self) -> None:
        """Level, task and language are set, by `reset` or `restore`: derive here what you keep beside `state`."""

    @abstractmethod
    def system_text(self) -> str:
        """The system message; names the tools when `self.compact_tools`."""

    @abstractmethod
    def begin(self) -> list[Message]:
        """Sets `self.state` and returns the messages after the system message."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Runs a tool whose arguments fit its schema.  Raises ToolError with a stated error; may end with `finish`."""

    @abstractmethod
    def hear(self, text: str) -> list[Message]:
        """The user's answer to what the assistant said; `text` may be empty."""

    def after_calls(self) -> list[Message]:
        """What the user says, unasked, after the tools have answered (say, that it saw the order placed)."""
        return []

    @abstractmethod
    def advise(self) -> tuple[AssistantMessage, list[AssistantMessage]]:
        """The expert's action, from what the assistant can see alone, and other actions that are as good."""

    @abstractmethod
    def judge(self, action: AssistantMessage, tool_call: ToolCall | None) -> Label:
        """The label of meaning: of one well-formed `tool_call`, or of what is said when `tool_call` is None."""

    @abstractmethod
    def meaning(self, text: str) -> str:
        """What a text says, so that two wordings to which the user reacts alike are equal."""

    def canonical_argument(self, name: str, key: str, value: Any) -> Any:
        """An argument value with its spelling normalised, where the tool does not care for it."""
        return value

    #: labels that `label` can return, stated so that a test can reach each
    reachable_labels: ClassVar[frozenset[Label]] = MALFORMED | {
        Label.OK,
        Label.UNKNOWN_TOOL,
        Label.REPEATED_CALL,
    }

    #: entries of `state` that only vary the wording: a change of them alone is no change of state
    wording_keys: ClassVar[frozenset[str]] = frozenset()

    # ---- Construction and reset ----------------------------------------------------------------------------------

    def __init__(
        self,
        *,
        level: int = 1,
        split: str = "train",
        language: Language = "en",
        compact_tools: bool = False,
        penalties: bool = True,
        shaping: bool = True,
        gamma: float = 1.0,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._defaults: dict[str, Any] = {"level": level, "task": None, "language": language, "split": split}
        choose(self._defaults, None, len(self.levels()))
        self.compact_tools, self.rewards = compact_tools, Rewards(penalties, shaping, gamma)
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {max_turns}")
        self.max_turns = max_turns
        self.render_mode = render_mode
        self.observation_space = MessageSpace()
        self.action_space = ActionSpace(tuple(_tools(type(self), level, language)))
        self.messages: list[Message] = []
        self.state: dict[str, Any] = {}
        self._live = False
        self._plan = Plan(self)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """See `AgentEnv`.  Raises ValueError that names a wrong option and the values it may have."""
        chosen = choose(self._defaults, options, len(self.levels()))
        super().reset(seed=seed)
        drawn, self.style = (int(number) for number in self.np_random.integers(2**31, size=2))
        self.task_index: int = drawn if chosen["task"] is None else chosen["task"]
        self.language: Language = chosen["language"]
        self.split: str = chosen["split"]
        self._enter(chosen["level"])
        self.turn, self.success, self._live, self._erred = 0, False, True, False
        self._calls, self._calls_mark = [], ""
        first = (Message("system", self.system_text()), *self.begin())
        self.messages = list(first)
        return first, {
            "tools": [] if self.compact_tools else [tool.as_openai() for tool in self.tools.values()],
            "level": self.level.index,
            "max_turns": self.level.max_turns,
            "task": self.task_index,
            "language": self.language,
            "split": self.split,
            "signature": self.task["signature"],
        }

    def _enter(self, level: int) -> None:
        rung = self.levels()[level - 1]
        self.level = dataclasses.replace(rung, max_turns=self.max_turns) if self.max_turns else rung
        self.task = find_task(type(self), level, self.task_index, self.split)
        self.tools = _tools(type(self), level, self.language)
        self._reader = CallReader(self.tools, self.language, self.canonical_argument)
        self._plan.forget()
        self.enter()

    # ---- One turn ------------------------------------------------------------------------------------------------

    def step(self, action: AssistantMessage) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """See `AgentEnv`.  Raises RuntimeError outside a live episode and TypeError for an action of another type."""
        if not self._live:
            raise RuntimeError("step: no live episode; call reset first")
        if not isinstance(action, AssistantMessage):
            raise TypeError(f"step: the action must be an AssistantMessage, not {type(action).__name__}")
        labels, before = self._labels(action), self._plan.steps_left()
        label = _first_bad(labels)
        answers = self.play(action)
        self.turn += 1
        terminated = self.finished
        truncated = not terminated and self.turn >= self.level.max_turns
        self._live = not (terminated or truncated)
        self._plan.move_on()
        steps_left = self._plan.steps_left()
        self.success = terminated and bool(self.state["success"])
        first_error = not self._erred and (label is not Label.OK or steps_left > before)
        self._erred = self._erred or first_error
        parts = self.rewards.parts(
            labels, before, steps_left, self.level.max_turns, terminated=terminated, success=self.success
        )
        self.messages += [Message("assistant", action.content, action.tool_calls), *answers]
        info = {
            "reward_parts": parts,
            "label": label,
            "success": self.success,
            "steps_left": steps_left,
            "first_error": first_error,
        }
        return tuple(answers), sum(parts.values()), terminated, truncated, info

    @property
    def finished(self) -> bool:
        """Whether the user has ended the dialogue."""
        return bool(self.state.get("finished"))

    def finish(self, success: bool) -> None:
        """The user ends the dialogue.  Nothing else ends it but the turn limit."""
        self.state["finished"], self.state["success"] = True, success

    def play(self, action: AssistantMessage, noted: bool = True) -> list[Message]:
        """The world's answers to `action`; changes `self.state`.  Text beside calls is not heard.

        `noted` calls count when a later one is a repetition.
        """
        if action.truncated:
            return [Message("tool", FORM_ERRORS[Label.TRUNCATED][self.language])]
        if not action.tool_calls:
            return self.hear(action.content)
        answers: list[Message] = []
        for tool_call in action.tool_calls:
            answer, last = self._run(tool_call, noted)
            answers.append(answer)
            if last:
                break
        return answers + self.after_calls()

    def _run(self, tool_call: ToolCall, noted: bool) -> tuple[Message, bool]:
        """A tool's answer, and whether it is the message's last: calls after a stated error are not run."""
        form, key = self._reader.read(tool_call)
        if form is not Label.OK:
            return self._reader.form_error(form, tool_call), True
        stated, down = False, False
        try:
            text = self.call_tool(tool_call.name, tool_call.arguments or {})
        except ToolError as error:
            text, stated, down = str(error), True, isinstance(error, ToolDown)
        if noted:
            self._note(key, down)
        return Message("tool", text, name=tool_call.name), stated or self.finished

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Inside, actions are played on a copy of the state; afterwards nothing has happened."""
        kept = self.state, self._calls, self._calls_mark
        self.state = snapshots.copy_tree(self.state)
        try:
            yield
        finally:
            self.state, self._calls, self._calls_mark = kept

    # ---- Repetition ----------------------------------------------------------------------------------------------

    def _note(self, key: str, down: bool) -> None:
        """Remembers a call for as long as the world stays as it is; not one that asks to be tried again."""
        mark = self._mark()
        made = self._calls if mark == self._calls_mark else []
        self._calls, self._calls_mark = (made if down else [*made, key]), mark

    def _world(self) -> dict[str, Any]:
        """The state without what only varies the wording."""
        return {key: value for key, value in self.state.items() if key not in self.wording_keys}

    def _mark(self) -> str:
        """Differs after any change of the world that `state_hash` sees: the order of keys does not count."""
        return hashlib.blake2b(canonical_json(self._world()).encode(), digest_size=8).hexdigest()

    # ---- Labels and advice ---------------------------------------------------------------------------------------

    def label(self, action: AssistantMessage) -> Label:
        """See `AgentEnv`.  Of several calls the first bad one is labelled, in the state that those before it led to."""
        return _first_bad(self._labels(action))

    def _labels(self, action: AssistantMessage) -> list[Label]:
        """The label of what is said, or of each call that would be run."""
        if action.truncated:
            return [Label.TRUNCATED]
        if not action.tool_calls:
            return [self.judge(action, None)]
        if len(action.tool_calls) == 1:
            return [self._label_call(action, action.tool_calls[0])]
        labels: list[Label] = []
        with self.rehearsal():
            for tool_call in action.tool_calls:
                labels.append(self._label_call(action, tool_call))
                if self._run(tool_call, noted=True)[1]:
                    break
        return labels

    def _label_call(self, action: AssistantMessage, tool_call: ToolCall) -> Label:
        form, key = self._reader.read(tool_call)
        if form is not Label.OK:
            return form
        label = self.judge(action, tool_call)
        repeated = key in self._calls and self._mark() == self._calls_mark
        if repeated and (label is Label.OK or ORDER[label] > ORDER[Label.REPEATED_CALL]):
            return Label.REPEATED_CALL
        return label

    def canonical(self, action: AssistantMessage) -> str:
        """The meaning of an action: equal for two actions that the world answers alike.  Never raises."""
        if action.truncated:
            return "truncated"
        if action.tool_calls:
            return "+".join(self._reader.read(tool_call)[1] for tool_call in action.tool_calls)
        return "say:" + self.meaning(action.content)

    def oracle(self) -> Advice:
        """See `AgentEnv`.  `steps_left` is exact.  Raises RuntimeError outside a live episode."""
        if not self._live:
            raise RuntimeError("oracle: no live episode; call reset first")
        return self._plan.advice()

    # ---- State ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """See `AgentEnv` and `envs.snapshots`."""
        return snapshots.pack(self)

    def restore(self, snapshot: bytes) -> None:
        """See `AgentEnv`."""
        self._enter(snapshots.unpack(self, snapshot))

    def state_hash(self) -> str:
        """Of the task and the world's state.  Turns already spent do not count, or no state would be met twice."""
        told = canonical_json([self.task["signature"], self.level.index, self._world()])
        return hashlib.sha256(told.encode()).hexdigest()

    def render(self) -> str | None:
        """The dialogue so far, one message a line."""
        if self.render_mode != "ansi":
            return None
        return "\n".join(
            f"{m.role}: {m.content}" + "".join(f" [{c.name} {canonical_json(c.arguments)}]" for c in m.tool_calls)
            for m in self.messages
        )


def _first_bad(labels: list[Label]) -> Label:
    return next((label for label in labels if label is not Label.OK), Label.OK)


@functools.cache
def _tools(env: type[DialogueEnv], level: int, language: Language) -> dict[str, Tool]:
    return env.tools_for(env.levels()[level - 1], language)
