"""Food ordering: the shared gates, its difficulty, its words and its expert; the user is in a file of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from envs.calls import Language
from envs.contract import AssistantMessage, Label, ParseStatus, ToolCall, call, say
from envs.food_order import tasks
from envs.food_order.env import FoodOrderEnv
from envs.food_order.expert import Expert
from envs.food_order.texts import ANSWER, ASK, understand
from envs.food_order.words import ZH, meant, misspelt, shown, spelt
from envs.splits import LANGUAGES
from tests.envs.gates import Gates
from tests.envs.players import ORDER_TALK, play_expert, until


def malformed(status: ParseStatus) -> Callable[[FoodOrderEnv], AssistantMessage]:
    return lambda env: AssistantMessage(tool_calls=(ToolCall("quote", None, status, "{"),))


def at_level(env: FoodOrderEnv, level: int) -> FoodOrderEnv:
    env.reset(seed=0, options={"level": level, "task": 0})
    return env


def wish(env: FoodOrderEnv) -> dict[str, Any]:
    return {"dish": env.task["items"][0]["dish"], "quantity": env.task["items"][0]["quantity"]}


def repeated(env: FoodOrderEnv) -> AssistantMessage:
    action = call("search_menu", query="soup")
    env.step(action)
    return action


def when_confirmed(env: FoodOrderEnv) -> AssistantMessage:
    until(env, lambda state: state["confirmed"])
    return say("anything else?")


class TestFoodOrder(Gates):
    env_class = FoodOrderEnv
    env_id = "agentrl/FoodOrder-v0"
    talk = ORDER_TALK
    label_cases: ClassVar[dict[Label, Callable[[FoodOrderEnv], AssistantMessage]]] = {
        Label.TRUNCATED: lambda env: AssistantMessage("where", truncated=True),
        Label.INVALID_JSON: malformed(ParseStatus.INVALID_JSON),
        Label.UNCLOSED_BLOCK: malformed(ParseStatus.UNCLOSED_BLOCK),
        Label.MISSING_NAME: malformed(ParseStatus.MISSING_NAME),
        Label.MALFORMED_STRUCTURE: malformed(ParseStatus.MALFORMED_STRUCTURE),
        Label.UNKNOWN_TOOL: lambda env: call("order_food"),
        Label.WRONG_TOOL: lambda env: call("update_item", **wish(env)),
        Label.ARGS_MISSING: lambda env: call("add_item", dish=wish(env)["dish"]),
        Label.ARGS_EXTRA: lambda env: call("add_item", **wish(env), size="large"),
        Label.ARGS_TYPE: lambda env: call("add_item", **{**wish(env), "quantity": "two"}),
        Label.ARGS_ENUM: lambda env: call("add_item", **{**wish(at_level(env, 4)), "size": "huge"}),
        Label.HALLUCINATED_ARG: lambda env: call("add_item", dish="dragon-soup", quantity=1),
        Label.WRONG_VALUE: lambda env: call("add_item", **{**wish(env), "quantity": wish(env)["quantity"] + 1}),
        Label.MISSING_INFO: lambda env: call("quote"),
        Label.POLICY_VIOLATION: lambda env: call("place_order"),
        Label.REPEATED_CALL: repeated,
        Label.REDUNDANT_ASK: lambda env: say("where to?"),
        Label.PREMATURE_STOP: lambda env: say("your order is placed. bye!"),
        Label.NO_STOP: when_confirmed,
        Label.OK: lambda env: call("add_item", **wish(env)),
    }


# ---- Difficulty --------------------------------------------------------------------------------------------------


def met(level: int, count: int = 300) -> list[dict[str, Any]]:
    env = FoodOrderEnv(level=level)
    return [env.reset(options={"task": task})[1] and env.task for task in range(count)]


def test_every_knob_of_difficulty_is_turned_at_some_level() -> None:
    neutral = tasks.LEVELS[0].settings
    assert {key for level in tasks.LEVELS for key, value in level.settings.items() if value != neutral[key]} >= {
        key for key in neutral if key not in ("upfront",)
    }
    assert tasks.LEVELS[-1].settings["items"][1] == 6
    assert tasks.LEVELS[-1].settings["distractors"] == 12
    assert max(level.max_turns for level in tasks.LEVELS) == 30


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_first_levels_have_no_noise_and_no_changes(level: int) -> None:
    for task in met(level, 100):
        assert not task["noise"]
        assert not task["changes"]
        assert not task["out_of_stock"]
        assert not any(task["typos"])


def test_the_hard_levels_meet_every_kind_of_noise_and_change() -> None:
    hard = met(7)
    assert {noise for task in hard for noise in task["noise"].values()} == set(tasks.NOISES)
    assert {change[0] for task in hard for change in task["changes"]} == {"quantity", "drop", "swap", "slot"}
    assert {manner for task in hard for manner in task["vague"].values()} == {"kind", "typo"}
    assert {len(task["items"]) for task in hard} == {4, 5, 6}
    assert any(task["budget"] for task in hard)
    assert any(task["coupon"] for task in hard)
    assert any(fallback is None for task in hard for fallback in task["out_of_stock"].values())


def test_when_nothing_wanted_is_in_stock_saying_so_is_success() -> None:
    env, refused = FoodOrderEnv(level=5), 0
    for task in range(200):
        env.reset(seed=task, options={"task": task})
        stock = env.task["out_of_stock"]
        if len(env.task["items"]) == len(stock) and not any(stock.values()):
            assert play_expert(env)[0]
            assert not env.state["placed"]
            refused += 1
    assert refused > 0


# ---- Words -------------------------------------------------------------------------------------------------------


def test_every_word_has_one_meaning_in_each_language() -> None:
    assert len(set(ZH.values())) == len(ZH)
    for word in ZH:
        assert {meant(shown(word, language)) for language in LANGUAGES} == {word}


def test_in_chinese_tools_are_described_in_chinese() -> None:
    _, info = FoodOrderEnv(level=7, language="zh").reset(seed=0)
    assert not [tool for tool in info["tools"] if re.search("[a-z]", tool["function"]["description"])]


def test_a_chinese_error_names_the_slot_in_chinese() -> None:
    env = FoodOrderEnv(level=7, language="zh")
    env.reset(seed=0)
    assert env.step(call("set_delivery", place="x"))[0][0].content == "错误：未知的地点x"
    env.state["basket"]["pad-thai"] = {"quantity": 1}
    assert env.step(call("quote"))[0][0].content == "错误：缺少地点"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_misspelt_dish_is_no_dish_and_means_one(language: Language) -> None:
    for dish in tasks.DISHES:
        slip = misspelt(dish, language)
        assert meant(slip) is None
        assert spelt(slip, language) == dish


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_question_of_the_expert_is_understood_as_that_question(language: Language) -> None:
    for slot, words in ASK[language].items():
        assert understand(words.format(d=shown("pad-thai", language)), language).asks == (slot,)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "２ LARGE  Miso-Ramen, 1 corn-soup; oak street; 6 pm; total 23. ok?"),
        ("zh", "２份大份味噌拉面，1份玉米汤；橡树街；晚上6点；共23。对吗？"),
    ],
)
def test_a_summary_is_read_whatever_its_width_and_case(language: Language, text: str) -> None:
    said = understand(text, language)
    assert dict(said.items) == {"miso-ramen": (2, "large", None), "corn-soup": (1, None, None)}
    assert said.values == {"oak street", "6 pm"}
    assert said.total == 23


def test_tools_take_the_words_of_either_language_in_any_width() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0, options={"task": 0})
    item = env.task["items"][0]
    for written in (item["dish"], item["dish"].upper(), f" {shown(item['dish'], 'zh')} "):
        action = call("add_item", dish=written, quantity=item["quantity"])
        assert env.canonical(action) == env.canonical(call("add_item", dish=item["dish"], quantity=item["quantity"]))
        assert env.label(action) is Label.OK


@pytest.mark.parametrize(("language", "written"), [("en", "LARGE"), ("en", "大份"), ("zh", "large"), ("zh", " 大份")])
def test_an_option_that_the_schema_refuses_is_not_the_one_it_allows(language: Language, written: str) -> None:
    env = FoodOrderEnv(level=4, language=language)
    env.reset(seed=0)
    odd, right = (call("update_item", dish="pad-thai", size=size) for size in (written, shown("large", language)))
    assert env.canonical(odd) != env.canonical(right)
    assert env.label(odd) is Label.ARGS_ENUM


def test_the_experts_words_are_few() -> None:
    assert all(len(words) == len(set(words)) for words in (ASK["en"].values(), ASK["zh"].values()))
    assert len(ASK["en"]) + len(ANSWER["en"]) < 15


class Watched(dict[str, Any]):
    """A state that notes which of its entries are read."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__(state)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


HIDDEN = {"goal", "slots", "want_coupon", "left", "changes", "budget", "noise", "facts", "refusals", "spoken"}


@pytest.mark.parametrize("level", range(1, 8))
def test_the_expert_reads_nothing_that_the_assistant_cannot_see(level: int) -> None:
    env = FoodOrderEnv()
    for seed in range(20):
        env.reset(seed=seed, options={"level": level})
        while env._live:
            watched = Watched(env.state)
            Expert(watched, env.level.settings, "en").advise()
            assert not watched.read & HIDDEN
            env.step(env.oracle().action)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("level", range(1, 8))
def test_every_argument_of_the_expert_has_been_said_before_in_the_dialogue(level: int, language: Language) -> None:
    env = FoodOrderEnv(language=language)
    for seed in range(20):
        env.reset(seed=seed, options={"level": level})
        while env._live:
            seen = " ".join(message.content for message in env.messages).translate(
                str.maketrans("０１２３４５６７８９", "0123456789")
            )
            action = env.oracle().action
            for tool_call in action.tool_calls:
                assert all(str(value) in seen for value in (tool_call.arguments or {}).values()), tool_call
            env.step(action)
