"""The bookkeeping that all environments share, seen through the easiest one."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from envs.calls import UNPRINTABLE, Tool, canonical_json
from envs.contract import AssistantMessage, Label, ParseStatus, ToolCall, call, say
from envs.food_order.env import FoodOrderEnv
from envs.snapshots import copy_tree
from envs.splits import split_of, stable_hash
from tests.envs.gates import chance_of_at_most, nested
from tests.envs.players import play_expert


def started(**arguments: Any) -> FoodOrderEnv:
    env = FoodOrderEnv(**arguments)
    env.reset(seed=0, options={"task": 0})
    return env


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 0}, "level must be an integer from 1 to 7"),
        ({"level": True}, "level"),
        ({"level": "1"}, "level"),
        ({"task": -1}, "task must be an integer of 0 or more"),
        ({"task": 1.0}, "task"),
        ({"language": "fr"}, "language must be one of"),
        ({"split": "test"}, "split must be one of"),
        ({"lvl": 1}, "unknown option 'lvl'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FoodOrderEnv().reset(options=options)


def test_a_wrong_constructor_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        FoodOrderEnv(level=99)
    with pytest.raises(ValueError, match="max_turns"):
        FoodOrderEnv(max_turns=0)


def test_a_step_outside_a_live_episode_is_refused() -> None:
    env = FoodOrderEnv()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(say("hello"))
    env = started()
    play_expert(env)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(say("hello"))
    with pytest.raises(RuntimeError, match="reset"):
        env.oracle()


def test_an_action_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="AssistantMessage"):
        started().step("hello")  # pyright: ignore[reportArgumentType]


def test_an_episode_is_truncated_at_the_turn_limit_and_not_terminated() -> None:
    env = FoodOrderEnv(max_turns=2)
    _, info = env.reset(seed=0)
    assert info["max_turns"] == 2
    assert env.step(say("hello"))[2:4] == (False, False)
    assert env.step(say("hello"))[2:4] == (False, True)


def test_without_penalties_and_shaping_the_reward_is_one_at_the_successful_end_alone() -> None:
    env, rewards = started(penalties=False, shaping=False), []
    while env._live:
        rewards.append(env.step(env.oracle().action)[1])
    assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_shaping_telescopes_to_minus_the_potential_of_the_start() -> None:
    env = started(penalties=False)
    rng, total, steps = random.Random(0), 0.0, env.oracle().steps_left
    while env._live:
        action = env.oracle().action if rng.random() < 0.7 else say("hello")
        total += env.step(action)[4]["reward_parts"]["shaping"]
    assert env.success
    assert math.isclose(total, steps / env.level.max_turns)


def test_shaping_discounts_the_next_potential() -> None:
    env = started(gamma=0.9)
    before = env.oracle().steps_left
    parts = env.step(env.oracle().action)[4]["reward_parts"]
    horizon = env.level.max_turns
    assert math.isclose(parts["shaping"], 0.9 * -(before - 1) / horizon + before / horizon)


@pytest.mark.parametrize(
    ("action", "part", "value"),
    [
        (AssistantMessage(tool_calls=(ToolCall("quote", None, ParseStatus.UNCLOSED_BLOCK),)), "malformed", -0.05),
        (call("place_order"), "forbidden", -0.2),
        (say("hello"), "step", -0.005),
    ],
)
def test_a_penalty_has_its_own_part(action: AssistantMessage, part: str, value: float) -> None:
    _, reward, _, _, info = started(shaping=False).step(action)
    assert info["reward_parts"][part] == value
    assert math.isclose(reward, sum(info["reward_parts"].values()))


def test_each_call_of_a_message_earns_its_own_penalty_and_one_that_is_not_run_earns_none() -> None:
    unnamed, search = ToolCall("get_dish", {"dish": "rice-cake"}), ToolCall("search_menu", {"query": "soup"})
    place, broken = ToolCall("place_order", {}), ToolCall("", None, ParseStatus.INVALID_JSON)
    for calls, due in (
        ((unnamed, place), {"forbidden"}),
        ((unnamed, search, search, broken), {"repeated", "malformed"}),
        ((unnamed, broken, place), {"malformed"}),
    ):
        info = started().step(AssistantMessage(tool_calls=calls))[4]
        assert info["label"] is Label.HALLUCINATED_ARG
        parts = info["reward_parts"]
        assert {part for part in ("malformed", "repeated", "forbidden") if parts[part]} == due


def test_the_same_call_is_repeated_only_while_nothing_has_changed() -> None:
    env = started()
    search = call("search_menu", query="soup")
    assert env.step(search)[4]["label"] is Label.OK
    again = env.step(search)[4]
    assert again["label"] is Label.REPEATED_CALL
    assert again["reward_parts"]["repeated"] == -0.02
    env.step(env.oracle().action)
    assert env.step(search)[4]["label"] is Label.OK


def test_only_the_first_error_is_marked() -> None:
    env = started()
    assert not env.step(env.oracle().action)[4]["first_error"]
    assert env.step(say("hello"))[4]["first_error"]
    assert not env.step(say("hello"))[4]["first_error"]


def test_each_malformed_call_is_answered_with_its_own_stated_error() -> None:
    env = started()
    stated = {
        env.step(AssistantMessage(tool_calls=(ToolCall("", None, status),)))[0][0].content
        for status in ParseStatus
        if status is not ParseStatus.OK
    }
    assert len(stated) == 4
    assert all(text.startswith("error: ") for text in stated)


@pytest.mark.parametrize(
    ("arguments", "english", "chinese"),
    [
        ({"quantity": 1}, "missing argument dish", "缺少参数 dish"),
        ({"dish": "x", "note": "y"}, "unknown argument note", "多余的参数 note"),
        ({"dish": "x", "size": 7}, "wrong argument type", "参数类型不对"),
        (
            {"dish": "x", "size": "LARGE"},
            "argument value not allowed: size is one of small, large",
            "参数取值不允许：size 只能是小份、大份",
        ),
        (
            {"dish": "x", "quantity": 0},
            "argument value not allowed: quantity is at least 1",
            "参数取值不允许：quantity 至少是 1",
        ),
    ],
)
def test_what_is_wrong_with_arguments_is_named(arguments: dict[str, Any], english: str, chinese: str) -> None:
    for env, stated in ((started(level=4), f"error: {english}"), (started(level=4, language="zh"), f"错误：{chinese}")):
        answer = env.step(call("update_item", **arguments))[0][0]
        assert (answer.content, answer.name) == (stated, "update_item")


def test_a_truncated_message_is_neither_heard_nor_run() -> None:
    env = started()
    before = env.state_hash()
    message = AssistantMessage(tool_calls=env.oracle().action.tool_calls, truncated=True)
    answers, *_, info = env.step(message)
    assert info["label"] is Label.TRUNCATED
    assert answers[0].content == "error: the message was cut off"
    assert env.state_hash() == before


def test_several_calls_run_in_order() -> None:
    env = started()
    item = env.task["items"][0]
    add = ToolCall("add_item", {"dish": item["dish"], "quantity": item["quantity"]})
    remove = ToolCall("remove_item", {"dish": item["dish"]})
    answers = env.step(AssistantMessage(tool_calls=(add, remove)))[0]
    assert [message.name for message in answers] == ["add_item", "remove_item"]
    assert env.state["basket"] == {}


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"a": "x", "b": 1}, Label.OK),
        ({"a": "x"}, Label.ARGS_MISSING),
        ({"a": "x", "b": 1, "c": 2}, Label.ARGS_EXTRA),
        ({"a": "x", "b": "1"}, Label.ARGS_TYPE),
        ({"a": "x", "b": True}, Label.ARGS_TYPE),
        ({"a": "x", "b": float("nan")}, Label.ARGS_TYPE),
        ({"a": "z", "b": 1}, Label.ARGS_ENUM),
        ({"a": 10**5000, "b": 1}, Label.ARGS_TYPE),
        ({"a": nested(100_000), "b": 1}, Label.ARGS_TYPE),
    ],
    ids=["right", "missing", "extra", "type", "bool for integer", "nan", "enum", "huge", "nested"],
)
def test_arguments_are_checked_against_the_schema(arguments: dict[str, Any], label: Label) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert Tool("t", "", schema).check(arguments) is label


def test_what_json_cannot_print_has_a_fixed_canonical_form() -> None:
    assert canonical_json(10**5000) == UNPRINTABLE
    assert canonical_json(nested(100_000)) == UNPRINTABLE
    assert canonical_json({"b": 1, "a": "\ud800"}) == '{"a":"\\ud800","b":1}'


def test_hashes_are_the_same_in_every_process() -> None:
    assert stable_hash("agentrl") == 0x7079FBC09A3794BA


def test_one_task_in_five_is_held_out() -> None:
    share = sum(split_of(str(number)) == "heldout" for number in range(10_000)) / 10_000
    assert 0.19 < share < 0.21


def test_the_gate_for_random_policies_can_see_two_percent() -> None:
    assert chance_of_at_most(0, 148, 0.02) > 0.05 > chance_of_at_most(0, 149, 0.02)
    assert chance_of_at_most(1, 200, 0.02) > 0.05 > chance_of_at_most(3, 400, 0.02)


def test_the_order_in_which_a_state_was_built_does_not_count() -> None:
    one, two = started(), started()
    two.state = dict(reversed(one.state.items()))
    assert list(two.state) != list(one.state)
    assert two.state_hash() == one.state_hash()
    assert two._mark() == one._mark()


def test_a_verdict_on_arguments_is_not_reused_where_the_schema_looks_at_their_values() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}, "n": {"type": "number"}}}
    tool = Tool("t", "", schema)
    assert tool.check({"a": "xx"}) is Label.OK
    assert tool.check({"a": "x"}) is not Label.OK
    assert tool.check({"n": 1.5}) is Label.OK
    assert tool.check({"n": True}) is Label.ARGS_TYPE
    paired = Tool("t", "", {**schema, "dependentRequired": {"a": ["n"]}})
    assert paired.check({"a": "xx", "n": 1}) is Label.OK
    assert paired.check({"a": "xx"}) is not Label.OK


@pytest.mark.parametrize(
    "made", [{"max_turns": 3}, {"penalties": False}, {"shaping": False}, {"gamma": 0.9}, {"compact_tools": True}]
)
def test_a_snapshot_goes_back_only_into_an_environment_made_like_its_own(made: dict[str, Any]) -> None:
    env = started(**made)
    env.step(say("hello"))
    kept, like_it = env.snapshot(), FoodOrderEnv(**made)
    like_it.restore(kept)
    assert like_it.level == env.level
    assert like_it.step(say("hello")) == env.step(say("hello"))
    with pytest.raises(ValueError, match=next(iter(made))):
        FoodOrderEnv().restore(kept)


def test_a_call_that_json_cannot_print_comes_back_without_arguments() -> None:
    env = started()
    env.step(call("quote", deep=nested(100_000)))
    env.restore(env.snapshot())
    assert env.messages[-2].tool_calls == (ToolCall("quote", {}),)


def test_a_copied_tree_shares_nothing() -> None:
    tree = {"a": [{"b": 1}], "c": "\ud800", "d": 10**5000, "e": None}
    copied = copy_tree(tree)
    assert copied == tree
    copied["a"][0]["b"] = 2
    assert tree["a"][0]["b"] == 1


def test_render_writes_the_dialogue_one_message_a_line() -> None:
    env = FoodOrderEnv(render_mode="ansi")
    env.reset(seed=0)
    env.step(call("quote"))
    text = env.render()
    assert text is not None
    assert text.splitlines()[-2] == "assistant:  [quote {}]"
