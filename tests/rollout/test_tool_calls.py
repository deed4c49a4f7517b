"""Reading tool calls out of whatever a model writes: every adversarial input has one exact answer."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.tool_calls import format_call, format_calls, parse_turn
from envs.contract import ParseStatus, ToolCall


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def only(text: str) -> ToolCall:
    (parsed,) = parse_turn(text).tool_calls
    return parsed


def test_the_canonical_form_keeps_chinese_as_it_is():
    assert (
        format_call("add", {"item": "拉面"})
        == '<tool_call>\n{"name": "add", "arguments": {"item": "拉面"}}\n</tool_call>'
    )


@pytest.mark.parametrize("value", ["</tool_call>", "<tool_call>", "{}}{", '"', "<think>", "02134", "1e1000000000"])
def test_a_string_argument_may_hold_anything(value):
    call = only(format_call("a", {"x": value}))
    assert (call.name, call.arguments, call.status) == ("a", {"x": value}, ParseStatus.OK)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{}", ParseStatus.MISSING_NAME),
        ("", ParseStatus.INVALID_JSON),
        ('{"arguments": {"x": 1}}', ParseStatus.MISSING_NAME),
        ('{"name": "", "arguments": {}}', ParseStatus.MISSING_NAME),
        ('{"name": null, "arguments": {}}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": ["a"], "arguments": {}}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": null}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": "{}"}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "parameters": {}}', ParseStatus.MALFORMED_STRUCTURE),
        ('[{"name": "a", "arguments": {}}]', ParseStatus.MALFORMED_STRUCTURE),
        ('"a"', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "name": "b", "arguments": {}}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": {"x": 1, "x": 2}}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": {}}{"name": "b", "arguments": {}}', ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": {}} and some prose', ParseStatus.MALFORMED_STRUCTURE),
        ("{'name': 'a', 'arguments': {'x': True}}", ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": None}}', ParseStatus.INVALID_JSON),
        ('```json\n{"name": "a", "arguments": {}}\n```', ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": NaN}}', ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": -Infinity}}', ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": 1e999}}', ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": ' + "[" * 100_000 + "}}", ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": ' + "[" * 70 + "]" * 70 + "}}", ParseStatus.MALFORMED_STRUCTURE),
        ('{"name": "a", "arguments": {"x": "\\ud800"}}', ParseStatus.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": 1}', ParseStatus.INVALID_JSON),
    ],
)  # fmt: skip
def test_a_closed_call_that_cannot_be_used_says_why(body, status):
    call = only(block(body))
    assert call.status is status
    assert call.arguments is None
    assert call.raw == block(body)


def test_missing_arguments_are_no_arguments():
    assert only(block('{"name": "a"}')).arguments == {}


def test_two_calls_glued_together_are_two_calls():
    text = format_call("a", {}) + format_call("b", {"x": 1})
    assert [(c.name, c.status) for c in parse_turn(text).tool_calls] == [("a", ParseStatus.OK), ("b", ParseStatus.OK)]


@pytest.mark.parametrize("body", ['{"name": "a", "arguments": {', '{"name": "a", "arguments": {}}', ""])
def test_a_call_that_never_closes_is_unclosed(body):
    call = only("<tool_call>\n" + body)
    assert (call.status, call.arguments) == (ParseStatus.UNCLOSED_BLOCK, None)


def test_an_unclosed_call_does_not_swallow_the_one_behind_it():
    first, second = parse_turn('<tool_call>\n{"name": "a",\n' + format_call("b", {})).tool_calls
    assert first.status is ParseStatus.UNCLOSED_BLOCK
    assert (second.name, second.status) == ("b", ParseStatus.OK)


def test_a_draft_in_the_reasoning_is_not_a_call():
    turn = parse_turn("<think>maybe " + format_call("draft", {}) + "</think>\nOk.\n" + format_call("real", {}))
    assert [c.name for c in turn.tool_calls] == ["real"]
    assert turn.content == "Ok."
    assert turn.reasoning.startswith("maybe <tool_call>")


def test_reasoning_that_never_ends_is_reasoning_alone():
    turn = parse_turn("<think>hmm " + format_call("draft", {}))
    assert (turn.content, turn.tool_calls, turn.reasoning_closed) == ("", (), False)


def test_prose_and_fences_around_a_call_are_content():
    turn = parse_turn("```\n" + format_call("a", {}) + "\n``` Anything else?")
    assert turn.content == "```\n\n``` Anything else?"
    assert turn.tool_calls[0].status is ParseStatus.OK


def test_the_same_call_fifty_times_is_fifty_calls():
    assert len(parse_turn("\n".join([format_call("a", {"x": 1})] * 50)).tool_calls) == 50


def test_a_very_long_text_of_openings_is_read_in_seconds():
    start = time.process_time()
    parse_turn("<tool_call>" * 10_000)
    parse_turn("<tool_call> {" * 10_000 + " " * 100_000)
    assert time.process_time() - start < 5


def test_malformed_calls_are_written_back_as_they_were_and_bare_raw_text_is_wrapped():
    bad = only(block("{'a'}"))
    assert format_calls([ToolCall("b", {}), bad]) == format_call("b", {}) + "\n" + block("{'a'}")
    assert format_calls([ToolCall("", None, ParseStatus.INVALID_JSON, "{oops")]) == block("{oops")
    assert format_calls([ToolCall("", None, ParseStatus.UNCLOSED_BLOCK, "{oops")]) == "<tool_call>\n{oops"


text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    arguments=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
def test_every_json_object_survives_being_written_and_read(name, arguments):
    (parsed,) = parse_turn(format_call(name, arguments)).tool_calls
    assert (parsed.name, parsed.arguments, parsed.status) == (name, json.loads(json.dumps(arguments)), ParseStatus.OK)


pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "a", "arguments": {}}', *'{}"\nx\\拉']
)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=20).map("".join))
def test_parsing_never_raises_and_arguments_are_there_exactly_for_calls_that_are_ok(text):
    for parsed in parse_turn(text).tool_calls:
        assert (parsed.arguments is not None) == (parsed.status is ParseStatus.OK)
        assert parsed.raw in text
