"""Tools and the form of calls: schemas, the check of arguments, and the stated answer to a call that cannot be run.

A `Tool` is what an environment declares; a `CallReader` reads the calls of one episode for `envs.base`.  Nothing here
knows the state of an episode, so what is wrong with a call's form never depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import jsonschema

from envs.contract import Label, Message, ParseStatus, ToolCall

Language = Literal["en", "zh"]

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
#: what a value that is not allowed may be, by the keyword of the schema that forbids it
LIMITS: dict[str, dict[Language, str]] = {
    "enum": {"en": ": {key} is one of {limit}", "zh": "：{key} 只能是{limit}"},
    "minimum": {"en": ": {key} is at least {limit}", "zh": "：{key} 至少是 {limit}"},
    "maximum": {"en": ": {key} is at most {limit}", "zh": "：{key} 至多是 {limit}"},
}
COMMA: dict[Language, str] = {"en": ", ", "zh": "、"}


class ToolError(Exception):
    """A tool's stated refusal; its text goes to the assistant as the tool's answer and ends the message's calls."""


class ToolDown(ToolError):
    """A refusal that asks for another try: the same call again is no repetition."""


#: keywords of an object's schema that look at no argument's value: with these alone, arguments are judged one by one
_EACH_BY_ITSELF = frozenset(
    {"type", "properties", "required", "additionalProperties", "minProperties", "maxProperties", "title", "description"}
)
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_PLAIN_NUMBER = 10**15
_SHORT_TEXT = 100
_MOST_KEPT = 10_000


class Tool:
    """A tool as the assistant sees it: `parameters` is the JSON schema of its arguments, compiled once."""

    __slots__ = (
        "_any_number",
        "_any_text",
        "_properties",
        "_verdicts",
        "description",
        "name",
        "parameters",
        "validator",
    )

    def __init__(self, name: str, description: str, parameters: dict[str, Any]) -> None:
        jsonschema.Draft202012Validator.check_schema(parameters)
        self.name, self.description, self.parameters = name, description, parameters
        self.validator = jsonschema.Draft202012Validator(parameters)
        self._verdicts: dict[tuple[Any, ...], Label] = {}
        properties = parameters.get("properties", {}) if parameters.keys() <= _EACH_BY_ITSELF else {}
        self._properties = frozenset(properties)
        self._any_text = frozenset(name for name, schema in properties.items() if _only_type(schema) == "string")
        self._any_number = frozenset(name for name, schema in properties.items() if _only_type(schema) == "number")

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: dict[str, Any]) -> Label:
        """OK, or the bad_args label of `arguments`.  Never raises."""
        shape = self._shape(arguments)
        if shape is None:
            return self._validate(arguments)
        verdict = self._verdicts.get(shape)
        if verdict is None:
            verdict = self._validate(arguments)
            if len(self._verdicts) < _MOST_KEPT:
                self._verdicts[shape] = verdict
        return verdict

    def fault(self, label: Label, arguments: dict[str, Any], language: Language) -> str:
        """Which argument a bad_args label is about and which values it may have, as the end of the error's text."""
        key, end, limit = "", " {key}", None
        if label is Label.ARGS_MISSING:
            key = next((one for one in self.parameters.get("required", ()) if one not in arguments), "")
        elif label is Label.ARGS_EXTRA:
            key = next((one for one in arguments if one not in self.parameters.get("properties", {})), "")
        elif label is Label.ARGS_ENUM:
            error = next(self.validator.iter_errors(arguments))
            key, limit = str(error.path[0]) if error.path else "", error.validator_value
            end = LIMITS[str(error.validator)][language] if error.validator in LIMITS else end
        shown = COMMA[language].join(map(str, limit)) if isinstance(limit, list) else limit
        return end.format(key=echo(key), limit=shown) if key else ""

    def _shape(self, arguments: dict[str, Any]) -> tuple[Any, ...] | None:
        """What the verdict depends on, where that is short: any text is as good as another unless the schema says more.

        jsonschema takes twenty times as long as all else that a call needs, and every page title is a new text.
        """
        shape: list[Any] = []
        for name, value in arguments.items():
            kind = type(value)
            if name not in self._properties:
                return None
            if kind is str and name in self._any_text:
                shape += (name, kind, None)
            elif kind is str and len(value) < _SHORT_TEXT:
                shape += (name, kind, value)
            elif kind in (int, float) and name in self._any_number and abs(value) < _PLAIN_NUMBER:
                shape += (name, kind, None)
            elif value is None or kind is bool or (kind is int and abs(value) < _PLAIN_NUMBER):
                shape += (name, kind, value)
            else:
                return None
        return tuple(shape)

    def _validate(self, arguments: Any) -> Label:
        try:
            broken = {error.validator for error in self.validator.iter_errors(arguments)}
        except (ValueError, RecursionError, TypeError, OverflowError):
            return Label.ARGS_TYPE  # jsonschema prints the value: integers of 5,000 digits and deep lists cannot be
        if not broken:
            return Label.OK
        return next((label for validator, label in SCHEMA_LABELS if validator in broken), Label.ARGS_ENUM)


def _only_type(schema: Any) -> Any:
    """The type that a property must have, where its schema asks for nothing else; None otherwise."""
    return schema.get("type") if isinstance(schema, dict) and schema.keys() - _ANNOTATIONS == {"type"} else None


class CallReader:
    """Reads the calls of one episode.  What it read is kept, for a turn is read by label, plan, world and oracle.

    A call is known by the object, which is frozen; do not change its arguments in place.
    """

    def __init__(
        self, tools: dict[str, Tool], language: Language, canonical_argument: Callable[[str, str, Any], Any]
    ) -> None:
        self._tools, self._canonical_argument = tools, canonical_argument
        self._language: Language = language
        self._kept: dict[int, tuple[ToolCall, Label, str]] = {}  # holds the call, so that its id stays its own

    def read(self, tool_call: ToolCall) -> tuple[Label, str]:
        """The label of a call's form, and its canonical text."""
        kept = self._kept.get(id(tool_call))
        if kept is None:
            if len(self._kept) >= _MOST_KEPT // 10:
                self._kept.clear()
            form = self._form(tool_call)
            kept = self._kept[id(tool_call)] = (tool_call, form, self._key(tool_call, form))
        return kept[1], kept[2]

    def _form(self, tool_call: ToolCall) -> Label:
        if tool_call.status is not ParseStatus.OK:
            return MALFORMED_LABELS[tool_call.status]
        if not isinstance(tool_call.arguments, dict):
            return Label.MALFORMED_STRUCTURE
        tool = self._tool(tool_call)
        return Label.UNKNOWN_TOOL if tool is None else tool.check(tool_call.arguments)

    def _key(self, tool_call: ToolCall, form: Label) -> str:
        """Spelling is normalised in a well-formed call alone: no other is the same as one that runs."""
        if form is not Label.OK:
            return f"{form}:{canonical_json([tool_call.name, tool_call.arguments])}"
        arguments = {
            key: self._canonical_argument(tool_call.name, key, value)
            for key, value in (tool_call.arguments or {}).items()
        }
        return f"call:{tool_call.name}:{canonical_json(arguments)}"

    def _tool(self, tool_call: ToolCall) -> Tool | None:
        return self._tools.get(tool_call.name) if isinstance(tool_call.name, str) else None

    def form_error(self, label: Label, tool_call: ToolCall) -> Message:
        """What the tool answers to a call that cannot be run."""
        text, tool = FORM_ERRORS[label][self._language], self._tool(tool_call)
        if tool is None:
            return Message("tool", text)
        return Message("tool", text + tool.fault(label, tool_call.arguments or {}, self._language), name=tool.name)


def echo(written: str) -> str:
    """What the assistant wrote, short and printable, for an error message."""
    return written[:40].encode("utf-8", "replace").decode()


UNPRINTABLE = "<unprintable>"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # json.dumps would make one for each call


def canonical_json(value: Any) -> str:
    """Sorted, compact ASCII JSON; a fixed word for what JSON cannot print.  Never raises."""
    try:
        return _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return UNPRINTABLE
