"""Hermes-style tool calls in text: the one place that reads and writes `<tool_call>` blocks.

`parse_turn` never raises, whatever a model writes: a call that cannot be used comes back with the status that says why
and with its raw text, so that the environment can answer with an error that the student can learn from.
`format_calls` writes the canonical form; parsing it gives the same calls back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envs.contract import ParseStatus, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What an assistant's text says: `content` is the text beside calls and reasoning, stripped."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    reasoning_closed: bool


class _DuplicateKey(ValueError):
    pass


def parse_turn(text: str) -> ParsedTurn:
    """Split an assistant's text into content, reasoning and calls, in one pass from left to right.

    Calls inside a reasoning block are drafts and are ignored.  A `</tool_call>` inside a JSON string does not end
    the call.
    """
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    marks_in = _Marks(text)
    closed, at = True, 0
    while at < len(text):
        think, call = marks_in.find(THINK, at), marks_in.find(OPEN, at)
        marks = [mark for mark in (think, call) if mark >= 0]
        if not marks:
            content.append(text[at:])
            break
        start = min(marks)
        content.append(text[at:start])
        if start == think:
            end = text.find(THINK_END, start)
            closed = end >= 0
            reasoning.append(text[start + len(THINK) : end if closed else len(text)])
            at = end + len(THINK_END) if closed else len(text)
        else:
            parsed, at = _parse_block(marks_in, start)
            calls.append(parsed)
    return ParsedTurn("".join(content).strip(), "\n".join(r.strip() for r in reasoning), tuple(calls), closed)


def format_call(name: str, arguments: dict[str, Any]) -> str:
    """The canonical form of one call.  Chinese stays Chinese."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def format_calls(calls: Iterable[ToolCall]) -> str:
    """Canonical calls one after the other; a malformed one goes in as the raw text it was written as."""
    return "\n".join(_written(call) for call in calls)


def check_arguments(arguments: Any) -> ParseStatus:
    """OK for an argument object that can be printed as JSON and encoded as UTF-8; else the status that says why not."""
    if not isinstance(arguments, dict) or _depth(arguments) > MAX_DEPTH:
        return ParseStatus.MALFORMED_STRUCTURE
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, TypeError, RecursionError):  # UnicodeEncodeError (a lone surrogate) is a ValueError
        return ParseStatus.INVALID_JSON
    return ParseStatus.OK


def _written(call: ToolCall) -> str:
    if call.status is ParseStatus.OK and call.arguments is not None:
        return format_call(call.name, call.arguments)
    if OPEN in call.raw:
        return call.raw
    closing = "" if call.status is ParseStatus.UNCLOSED_BLOCK else f"\n{CLOSE}"
    return f"{OPEN}\n{call.raw}{closing}"


class _Marks:
    """`text.find` that remembers its answers, so that a text of nothing but marks is read in linear time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._next: dict[str, int] = {}

    def find(self, mark: str, at: int) -> int:
        known = self._next.get(mark, 0)
        if 0 <= known < at or mark not in self._next:
            known = self._next[mark] = self.text.find(mark, at)
        return known


_SPACE = re.compile(r"\s*")


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _parse_block(marks: _Marks, start: int) -> tuple[ToolCall, int]:
    """The call whose opening tag stands at `start`, and where to read on."""
    text = marks.text
    begin = _skip_space(text, start + len(OPEN))
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except _DuplicateKey:
        status, value, end = ParseStatus.MALFORMED_STRUCTURE, None, begin
    except (ValueError, RecursionError):
        # Not only JSONDecodeError: an integer of 5,000 digits is a plain ValueError, deep nesting a RecursionError.
        status, value, end = ParseStatus.INVALID_JSON, None, begin
    else:
        rest = _skip_space(text, end)
        if text.startswith(CLOSE, rest):
            stop = rest + len(CLOSE)
            return _call_from(value, text[start:stop]), stop
        status = ParseStatus.MALFORMED_STRUCTURE
    close, reopened = marks.find(CLOSE, end), marks.find(OPEN, end)
    if close < 0 or 0 <= reopened < close:
        stop = reopened if reopened >= 0 else len(text)
        return ToolCall(_name_of(value), None, ParseStatus.UNCLOSED_BLOCK, text[start:stop].rstrip()), stop
    stop = close + len(CLOSE)
    return ToolCall(_name_of(value), None, status, text[start:stop]), stop


def _call_from(value: Any, raw: str) -> ToolCall:
    if not isinstance(value, dict):
        return ToolCall("", None, ParseStatus.MALFORMED_STRUCTURE, raw)
    name = _name_of(value)
    if "name" not in value or value["name"] == "":
        return ToolCall("", None, ParseStatus.MISSING_NAME, raw)
    if not name or value.keys() - {"name", "arguments"}:
        return ToolCall(name, None, ParseStatus.MALFORMED_STRUCTURE, raw)
    arguments = value.get("arguments", {})
    status = check_arguments(arguments)
    return ToolCall(name, arguments if status is ParseStatus.OK else None, status, raw)


def _name_of(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ""
    return name.encode("utf-8", "replace").decode("utf-8")


def _depth(value: Any) -> int:
    """Levels of nesting, without recursion: what is being measured may be what recursion cannot bear."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return depth


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKey("a key stands twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_float=_finite, parse_constant=_no_constant, strict=True
)
