"""What every dialogue environment here shares: turns, tool calls, rewards, labels of form, snapshots, the expert's plan.

A subclass keeps its episode in `self.state`, a tree of plain JSON values, and says how the world behaves (the methods
under "Override these").  Nothing is drawn at random after `reset`, so the future depends on the state and the actions
alone, and the expert's steps left are exact: found by playing the expert on a copy of the state.

Reward parts: `task` 1 at a successful end; `shaping` gamma*Phi(s') - Phi(s), Phi = -steps_left / max_turns and 0 at the
end (Ng, Harada and Russell 1999); penalties `malformed` -0.05, `repeated` -0.02, `step` -0.005, `forbidden` -0.2.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import marshal
import random
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import jsonschema

from envs.contract import (
    ActionSpace,
    Advice,
    AgentEnv,
    AssistantMessage,
    Label,
    Level,
    Message,
    MessageSpace,
    ParseStatus,
    ToolCall,
)

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
SPLITS = ("train", "heldout")
HELDOUT_SHARE = 5  # one task in five
PLAN_LIMIT = 400  # an expert that needs more turns than this is a defect of the environment

MALFORMED_LABELS = {
    ParseStatus.INVALID_JSON: Label.INVALID_JSON,
    ParseStatus.UNCLOSED_BLOCK: Label.UNCLOSED_BLOCK,
    ParseStatus.MISSING_NAME: Label.MISSING_NAME,
    ParseStatus.MALFORMED_STRUCTURE: Label.MALFORMED_STRUCTURE,
}
SCHEMA_LABELS = (
    ("required", Label.ARGS_MISSING),
    ("minProperties", Label.ARGS_MISSING),
    ("additionalProperties", Label.ARGS_EXTRA),
    ("type", Label.ARGS_TYPE),
    ("enum", Label.ARGS_ENUM),
)
FORM_ERRORS: dict[str, dict[Language, str]] = {
    Label.TRUNCATED: {"en": "error: the message was cut off", "zh": "错误：消息被截断"},
    Label.INVALID_JSON: {"en": "error: the tool call is not valid JSON", "zh": "错误：工具调用不是合法的 JSON"},
    Label.UNCLOSED_BLOCK: {"en": "error: the tool call is not closed", "zh": "错误：工具调用没有结束"},
    Label.MISSING_NAME: {"en": "error: the tool call has no name", "zh": "错误：工具调用没有名称"},
    Label.MALFORMED_STRUCTURE: {"en": "error: the tool call is malformed", "zh": "错误：工具调用格式不对"},
    Label.UNKNOWN_TOOL: {"en": "error: unknown tool", "zh": "错误：没有这个工具"},
    Label.ARGS_MISSING: {"en": "error: missing argument", "zh": "错误：缺少参数"},
    Label.ARGS_EXTRA: {"en": "error: unknown argument", "zh": "错误：多余的参数"},
    Label.ARGS_TYPE: {"en": "error: wrong argument type", "zh": "错误：参数类型不对"},
    Label.ARGS_ENUM: {"en": "error: argument value not allowed", "zh": "错误：参数取值不允许"},
}


class ToolError(Exception):
    """A tool's stated refusal; its text goes to the assistant as the tool's answer and ends the message's calls."""


class ToolDown(ToolError):
    """A refusal that asks for another try: the same call again is no repetition."""


class Tool:
    """A tool as the assistant sees it: `parameters` is the JSON schema of its arguments, compiled once."""

    __slots__ = ("_verdicts", "description", "name", "parameters", "validator")

    def __init__(self, name: str, description: str, parameters: dict[str, Any]) -> None:
        jsonschema.Draft202012Validator.check_schema(parameters)
        self.name, self.description, self.parameters = name, description, parameters
        self.validator = jsonschema.Draft202012Validator(parameters)
        self._verdicts: dict[str, Label] = {}

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Any, key: str) -> Label:
        """OK or the bad_args label of `arguments`; `key` is their canonical text, under which the answer is kept."""
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._validate(arguments)
            if len(self._verdicts) < 10_000 and len(key) < 500 and UNPRINTABLE not in key:
                self._verdicts[key] = verdict
        return verdict

    def _validate(self, arguments: Any) -> Label:
        try:
            broken = {error.validator for error in self.validator.iter_errors(arguments)}
        except (ValueError, RecursionError, TypeError, OverflowError):
            return Label.ARGS_TYPE  # jsonschema prints the value: integers of 5,000 digits and deep lists cannot be
        if not broken:
            return Label.OK
        return next((label for validator, label in SCHEMA_LABELS if validator in broken), Label.ARGS_ENUM)


UNPRINTABLE = "<unprintable>"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # json.dumps would make one for each call


def canonical_json(value: Any) -> str:
    """Sorted, compact ASCII JSON; a fixed word for what JSON cannot print.  Never raises."""
    try:
        return _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return UNPRINTABLE


def stable_hash(text: str) -> int:
    """The same 64-bit number in every process, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()[:8], "big")


def split_of(signature: str) -> str:
    """The split a task belongs to, by its meaning alone."""
    return "heldout" if stable_hash("split:" + signature) % HELDOUT_SHARE == 0 else "train"


def copy_tree(tree: Any) -> Any:
    """A deep copy of plain JSON values, ten times faster than `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(tree))


class DialogueEnv(AgentEnv):
    """Override these: `levels`, `errors`, `tools_for`, `make_task`, `begin`, `call_tool`, `hear`, `advise`, `judge`, `meaning`,
    `system_text`, `inject`.

    In them, `self.level`, `self.task` (what `make_task` returned: read only), `self.language` and `self.state` (yours,
    plain JSON) describe the episode.  The wording of an episode may vary with `self.style`, a number drawn at reset.
    """

    #: labels that `label` can return, stated so that a test can reach each
    reachable_labels: ClassVar[frozenset[Label]] = frozenset(MALFORMED_LABELS.values()) | {
        Label.OK,
        Label.TRUNCATED,
        Label.UNKNOWN_TOOL,
        Label.REPEATED_CALL,
    }

    #: entries of `state` that only vary the wording: a change of them alone is no change of state
    wording_keys: ClassVar[frozenset[str]] = frozenset()

    # ---- Override these ------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def tools_for(cls, level: Level, language: Language) -> dict[str, Tool]:
        """The tools of a level by name.  Asked once for each pair and kept."""

    @classmethod
    @abstractmethod
    def make_task(cls, level: Level, rng: random.Random) -> dict[str, Any]:
        """A semantic task, free of language and wording, as plain JSON with a `signature` (str) that says its meaning."""

    @abstractmethod
    def system_text(self) -> str:
        """The system message; names the tools when `self.compact_tools`."""

    @abstractmethod
    def begin(self) -> list[Message]:
        """Sets `self.state` and returns the messages after the system message."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Runs a tool whose arguments fit its schema.  Raises ToolError with a stated error; ends with `self.finish`."""

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
        self._chosen(None)
        self.compact_tools, self.penalties, self.shaping, self.gamma = compact_tools, penalties, shaping, gamma
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {max_turns}")
        self.max_turns = max_turns
        self.render_mode = render_mode
        self.observation_space = MessageSpace()
        self.action_space = ActionSpace(tuple(_tools(type(self), level, language)))
        self.messages: list[Message] = []
        self.state: dict[str, Any] = {}
        self._live = False

    def _chosen(self, options: dict[str, Any] | None) -> dict[str, Any]:
        chosen = {**self._defaults, **(options or {})}
        unknown = sorted(set(chosen) - set(self._defaults))
        if unknown:
            raise ValueError(f"reset: unknown option {unknown[0]!r}; known are {sorted(self._defaults)}")
        level, task, count = chosen["level"], chosen["task"], len(self.levels())
        if type(level) is not int or not 1 <= level <= count:
            raise ValueError(f"reset: level must be an integer from 1 to {count}, not {level!r}")
        if task is not None and (type(task) is not int or task < 0):
            raise ValueError(f"reset: task must be an integer of 0 or more, not {task!r}")
        if chosen["language"] not in LANGUAGES:
            raise ValueError(f"reset: language must be one of {LANGUAGES}, not {chosen['language']!r}")
        if chosen["split"] not in SPLITS:
            raise ValueError(f"reset: split must be one of {SPLITS}, not {chosen['split']!r}")
        return chosen

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Message, ...], dict[str, Any]]:
        """See `AgentEnv`.  Raises ValueError that names a wrong option and the values it may have."""
        chosen = self._chosen(options)
        super().reset(seed=seed)
        drawn, self.style = (int(number) for number in self.np_random.integers(2**31, size=2))
        self.task_index: int = drawn if chosen["task"] is None else chosen["task"]
        self.language: Language = chosen["language"]
        self.split: str = chosen["split"]
        self._enter(chosen["level"])
        self.turn, self.success = 0, False
        self._live, self._erred, self._plan = True, False, None
        self._calls, self._calls_mark, self._read = [], "", None
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

    # ---- One turn ------------------------------------------------------------------------------------------------

    def step(
        self, action: AssistantMessage
    ) -> tuple[tuple[Message, ...], float, bool, bool, dict[str, Any]]:
        """See `AgentEnv`.  Raises RuntimeError outside a live episode and TypeError for an action of another type."""
        if not self._live:
            raise RuntimeError("step: no live episode; call reset first")
        if not isinstance(action, AssistantMessage):
            raise TypeError(f"step: the action must be an AssistantMessage, not {type(action).__name__}")
        label = self.label(action)
        before, key = self.plan(), self.canonical(action)
        answers = self._play(action)
        self.turn += 1
        terminated = self.finished
        truncated = not terminated and self.turn >= self.level.max_turns
        self._live = not (terminated or truncated)
        if terminated:
            self._plan = []
        elif before and before[0] == key:
            self._plan = before[1:]
        else:
            self._plan = None
        steps_left = len(self.plan())
        self.success = terminated and bool(self.state["success"])
        first_error = not self._erred and (label is not Label.OK or steps_left > len(before))
        self._erred = self._erred or first_error
        parts = self._reward_parts(label, len(before), steps_left, terminated)
        self.messages += [Message("assistant", action.content, action.tool_calls), *answers]
        info = {
            "reward_parts": parts,
            "label": label,
            "success": self.success,
            "steps_left": steps_left,
            "first_error": first_error,
        }
        return tuple(answers), sum(parts.values()), terminated, truncated, info

    def _reward_parts(self, label: Label, before: int, after: int, terminated: bool) -> dict[str, float]:
        parts = {"task": 1.0 if self.success else 0.0}
        if self.shaping:
            horizon = self.level.max_turns
            parts["shaping"] = self.gamma * (0.0 if terminated else -after / horizon) + before / horizon
        if self.penalties:
            parts["step"] = -0.005
            malformed = label in MALFORMED_LABELS.values() or label is Label.TRUNCATED
            parts["malformed"] = -0.05 if malformed else 0.0
            parts["repeated"] = -0.02 if label is Label.REPEATED_CALL else 0.0
            parts["forbidden"] = -0.2 if label is Label.POLICY_VIOLATION else 0.0
        return parts

    @property
    def finished(self) -> bool:
        """Whether the user has ended the dialogue."""
        return bool(self.state.get("finished"))

    def finish(self, success: bool) -> None:
        """The user ends the dialogue.  Nothing else ends it but the turn limit."""
        self.state["finished"], self.state["success"] = True, success

    def _play(self, action: AssistantMessage) -> list[Message]:
        """Changes `self.state` and `self._calls`, and returns the answers.  Text beside calls is not heard by the user."""
        if action.truncated:
            return [Message("tool", FORM_ERRORS[Label.TRUNCATED][self.language])]
        if not action.tool_calls:
            return self.hear(action.content)
        answers: list[Message] = []
        for tool_call in action.tool_calls:
            form, key = self._read_call(tool_call)
            if form is not Label.OK:
                answers.append(Message("tool", self.form_error(form, tool_call), name=self._answer_name(tool_call)))
                break
            stated, down = False, False
            try:
                text = self.call_tool(tool_call.name, tool_call.arguments or {})
            except ToolError as error:
                text, stated, down = str(error), True, isinstance(error, ToolDown)
            mark = self._mark()
            made = self._calls if mark == self._calls_mark else []
            self._calls, self._calls_mark = (made if down else [*made, key]), mark
            answers.append(Message("tool", text, name=tool_call.name))
            if stated or self.finished:
                break
        return answers + self.after_calls()

    def _world(self) -> dict[str, Any]:
        """The state without what only varies the wording."""
        return {key: value for key, value in self.state.items() if key not in self.wording_keys}

    def _mark(self) -> str:
        """Differs after any change of the world.  Format 2 of marshal writes equal trees alike; later ones do not."""
        return hashlib.blake2b(marshal.dumps(self._world(), 2), digest_size=8).hexdigest()

    def _answer_name(self, tool_call: ToolCall) -> str | None:
        return tool_call.name if tool_call.name in self.tools else None

    def form_error(self, label: Label, tool_call: ToolCall) -> str:
        """What the tool answers to a call that cannot be run."""
        text = FORM_ERRORS[label][self.language]
        tool = self.tools.get(tool_call.name)
        if label is not Label.ARGS_MISSING or tool is None:
            return text
        missing = [key for key in tool.parameters.get("required", ()) if key not in (tool_call.arguments or {})]
        return f"{text} {missing[0]}" if missing else text

    # ---- Labels --------------------------------------------------------------------------------------------------

    def _read_call(self, tool_call: ToolCall) -> tuple[Label, str]:
        """The label of a call's form and its canonical text; kept for the last call, which a turn reads several times."""
        if self._read is None or self._read[0] is not tool_call:
            self._read = (tool_call, self._form(tool_call), self._call_key(tool_call))
        return self._read[1], self._read[2]

    def _form(self, tool_call: ToolCall) -> Label:
        if tool_call.status is not ParseStatus.OK:
            return MALFORMED_LABELS[tool_call.status]
        if not isinstance(tool_call.arguments, dict):
            return Label.MALFORMED_STRUCTURE
        tool = self.tools.get(tool_call.name) if isinstance(tool_call.name, str) else None
        if tool is None:
            return Label.UNKNOWN_TOOL
        return tool.check(tool_call.arguments, canonical_json(tool_call.arguments))

    def label(self, action: AssistantMessage) -> Label:
        """See `AgentEnv`.  Of several calls the first bad one is labelled, in the state that those before it led to."""
        if action.truncated:
            return Label.TRUNCATED
        if not action.tool_calls:
            return self.judge(action, None)
        if len(action.tool_calls) == 1:
            return self._label_call(action, action.tool_calls[0])
        kept = self.state, self._calls, self._calls_mark
        try:
            for tool_call in action.tool_calls:
                label = self._label_call(action, tool_call)
                if label is not Label.OK or self.finished:
                    return label
                self.state = copy_tree(self.state)
                self._play(AssistantMessage(tool_calls=(tool_call,)))
        finally:
            self.state, self._calls, self._calls_mark = kept
        return Label.OK

    def _label_call(self, action: AssistantMessage, tool_call: ToolCall) -> Label:
        form, key = self._read_call(tool_call)
        if form is not Label.OK:
            return form
        label = self.judge(action, tool_call)
        repeated = key in self._calls and self._mark() == self._calls_mark
        if repeated and (label is Label.OK or ORDER[label] > ORDER[Label.REPEATED_CALL]):
            return Label.REPEATED_CALL
        return label

    # ---- Expert --------------------------------------------------------------------------------------------------

    def canonical(self, action: AssistantMessage) -> str:
        """The meaning of an action: equal for two actions that the world answers alike.  Never raises."""
        if action.truncated:
            return "truncated"
        if action.tool_calls:
            return "+".join(self._read_call(tool_call)[1] for tool_call in action.tool_calls)
        return "say:" + self.meaning(action.content)

    def _call_key(self, tool_call: ToolCall) -> str:
        if tool_call.status is not ParseStatus.OK or not isinstance(tool_call.arguments, dict):
            return f"malformed:{tool_call.status}"
        arguments = {
            key: self.canonical_argument(tool_call.name, key, value) for key, value in tool_call.arguments.items()
        }
        return f"call:{tool_call.name}:{canonical_json(arguments)}"

    def plan(self) -> list[str]:
        """Canonical actions of the expert from here to the end; empty when the dialogue has ended."""
        if self._plan is None:
            self._plan = self._play_expert()
        return self._plan

    def _play_expert(self) -> list[str]:
        kept = self.state, self._calls, self._calls_mark
        self.state = copy_tree(self.state)
        try:
            plan: list[str] = []
            while not self.finished:
                action, _ = self.advise()
                plan.append(self.canonical(action))
                if len(plan) > PLAN_LIMIT:
                    raise RuntimeError(f"the expert does not come to an end on {self.task['signature']}: {plan[-3:]}")
                self._play(action)
            return plan
        finally:
            self.state, self._calls, self._calls_mark = kept

    def oracle(self) -> Advice:
        """See `AgentEnv`.  `steps_left` is exact.  Raises RuntimeError outside a live episode."""
        if not self._live:
            raise RuntimeError("oracle: no live episode; call reset first")
        action, others = self.advise()
        acceptable = frozenset(self.canonical(one) for one in (action, *others))
        return Advice(action, acceptable, len(self.plan()))

    # ---- Snapshots -----------------------------------------------------------------------------------------------

    _KEPT = ("task_index", "language", "split", "style", "turn", "success", "state", "_live", "_erred", "_calls", "_calls_mark")

    def snapshot(self) -> bytes:
        """JSON, not pickle: a snapshot from the network can do no harm.  Keys keep their order, which is part of the state."""
        kept = {name: getattr(self, name) for name in self._KEPT}
        kept["level"] = self.level.index
        kept["random"] = self.np_random.bit_generator.state
        kept["messages"] = [_message_to_json(message) for message in self.messages]
        return json.dumps(kept).encode("ascii")

    def restore(self, snapshot: bytes) -> None:
        kept = json.loads(snapshot)
        for name in self._KEPT:
            setattr(self, name, kept[name])
        self._enter(kept["level"])
        self.np_random.bit_generator.state = kept["random"]
        self.messages = [_message_from_json(message) for message in kept["messages"]]
        self._plan, self._read = None, None

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


ORDER = {label: position for position, label in enumerate(Label)}


@functools.cache
def _tools(env: type[DialogueEnv], level: int, language: Language) -> dict[str, Tool]:
    return env.tools_for(env.levels()[level - 1], language)


@functools.lru_cache(maxsize=20_000)
def find_task(env: type[DialogueEnv], level: int, index: int, split: str) -> dict[str, Any]:
    """The task of an index: the first one drawn from it whose signature belongs to `split`."""
    for attempt in range(1000):
        rng = random.Random(stable_hash(f"{env.__name__}:{level}:{split}:{index}:{attempt}"))
        task = env.make_task(env.levels()[level - 1], rng)
        if split_of(task["signature"]) == split:
            return task
    raise RuntimeError(f"no {split} task found for level {level}: its tasks are too few to be split")


def _message_to_json(message: Message) -> list[Any]:
    calls = [[c.name, None if c.arguments is None else _printable(c.arguments), str(c.status), c.raw] for c in message.tool_calls]
    return [message.role, message.content, calls, message.name]


def _printable(arguments: Any) -> Any:
    return UNPRINTABLE if canonical_json(arguments) == UNPRINTABLE else arguments


def _message_from_json(parts: list[Any]) -> Message:
    role, content, calls, name = parts
    return Message(role, content, tuple(ToolCall(n, a, ParseStatus(s), r) for n, a, s, r in calls), name)
