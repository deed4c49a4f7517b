"""The simulated user of the food order: what it answers, when it is content, and when it goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.calls import Language
from envs.contract import AssistantMessage, call, say
from envs.food_order import tasks
from envs.food_order.env import FoodOrderEnv
from envs.food_order.texts import ANSWER, ASK, understand
from tests.envs.gates import few
from tests.envs.players import ORDER_TALK, random_action, until


@given(seed=st.integers(0, 100_000), level=st.integers(1, 7), share=st.sampled_from((0.0, 0.3, 0.8)))
@few
def test_the_user_ends_only_after_it_saw_the_order_placed_or_a_final_refusal(
    seed: int, level: int, share: float
) -> None:
    env, rng = FoodOrderEnv(), random.Random(seed)
    env.reset(seed=seed, options={"level": level})
    while True:
        action = env.oracle().action if rng.random() < share else random_action(env, rng, ORDER_TALK)
        answers, _, terminated, truncated, _ = env.step(action)
        if truncated:
            return
        if terminated:
            refused = env.state["refusals"] >= 2 or not env.state["goal"]
            assert env.state["placed"] or refused
            assert answers[-1].role == "user"
            assert "bye" in answers[-1].content
            return


@pytest.mark.parametrize(
    "words", ["bye", "goodbye, have a nice day!", "your order is placed.", "<stop>", "再见", "exit"]
)
def test_the_assistant_cannot_end_the_dialogue(words: str) -> None:
    env = FoodOrderEnv(max_turns=100)
    env.reset(seed=0, options={"level": 2})
    while not env.state["confirmed"]:
        for _ in range(3):
            answers, _, terminated, _, _ = env.step(say(words))
            assert not terminated
            assert answers[-1].role == "user"
        env.step(env.oracle().action)


def test_the_user_takes_one_unfounded_refusal_and_goes_at_the_second() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0)
    answers, _, terminated, _, _ = env.step(say("sorry, we cannot do that."))
    assert (answers[0].content, terminated) == ("but i want to order.", False)
    answers, _, terminated, _, info = env.step(say("sorry, we cannot do that."))
    assert (answers[0].content, terminated, info["success"]) == ("then nothing, bye.", True, False)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "Sorry, I did not get that. Where to?"),
        ("en", "I cannot hear you, where to?"),
        ("zh", "抱歉，请问送到哪里？"),
        ("zh", "还有没有别的需要？"),
        ("zh", "有没有备注？"),
        ("zh", "没有问题。"),
        ("zh", "您能不能说一下地址。"),
    ],
)
def test_a_polite_sentence_is_no_refusal(language: Language, words: str) -> None:
    env = FoodOrderEnv(level=2, language=language)
    env.reset(seed=0)
    for _ in range(3):
        assert not env.step(say(words))[2]
    assert env.state["refusals"] == 0


@pytest.mark.parametrize("words", ["sorry, no {}.", "sorry, no {}. anything else?", "{} is out of stock. which dish?"])
def test_a_dish_that_is_out_of_stock_is_heard_beside_a_question(words: str) -> None:
    env, task = FoodOrderEnv(level=5), 0
    while True:
        env.reset(seed=0, options={"task": task})
        dish = env.task["items"][0]["dish"]
        if dish in env.task["out_of_stock"] and not env.state["questions"]:
            break
        task += 1
    assert env.step(say(words.format(dish)))[0][0].content.startswith("then ")


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "total 15"), ("en", "the total is 15."), ("en", "Total: $15"), ("en", "total = ＄15"),
        ("zh", "共15"), ("zh", "总共是15元。"), ("zh", "一共：￥15"), ("zh", "共为15"),
    ],
)  # fmt: skip
def test_a_total_is_understood_however_it_is_said(language: Language, words: str) -> None:
    assert understand(words, language).total == 15


def test_a_wrong_summary_is_refused_and_the_wishes_are_said_again() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0, options={"task": 0})
    answers = env.step(env.inject("wrong_item_stated", random.Random(0)))[0]
    item = env.task["items"][0]
    assert answers[0].content == f"no, that is not what i ordered. i want {item['quantity']} {item['dish']}."


def test_a_wrong_total_and_a_missing_quote_are_stated() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0, options={"task": 0})
    until(env, lambda state: state["delivery"])
    item, place = env.task["items"][0], env.task["slots"]["place"]
    summary = f"{item['quantity']} {item['dish']}; {place}; total 99. ok?"
    assert env.step(say(summary))[0][0].content == "i see no quote yet."
    env.step(call("quote"))
    assert env.step(say(summary))[0][0].content == "no, that is not the total."


def test_an_order_that_differs_from_the_goal_is_no_success() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0, options={"task": 0})
    until(env, lambda state: state["delivery"])
    item, place = env.task["items"][0], env.task["slots"]["place"]
    other = next(dish for dish in tasks.DISHES if dish != item["dish"])
    env.step(call("remove_item", dish=item["dish"]))
    env.step(call("add_item", dish=other, quantity=1))
    env.step(call("quote"))
    env.step(say(f"{item['quantity']} {item['dish']}; {place}; total {env.state['quote']}. ok?"))
    _, _, terminated, _, info = env.step(call("place_order"))
    assert (terminated, info["success"], info["reward_parts"]["task"]) == (True, False, 0.0)


def summary(env: FoodOrderEnv) -> AssistantMessage:
    """The quote read back, whether or not all has been asked for."""
    return say(ANSWER["en"]["confirm"].format(quote=env.step(call("quote"))[0][0].content))


def single_dish(coupon: bool) -> FoodOrderEnv:
    """An episode of level 4 in which all is in order but nobody has asked whether there is more."""
    env = FoodOrderEnv(level=4)
    for task in range(1000):
        env.reset(seed=0, options={"task": task})
        if len(env.task["items"]) == 1 and not env.task["changes"] and bool(env.task["coupon"]) == coupon:
            break
    item, slots = env.task["items"][0], env.task["slots"]
    for slot in ("size", "place", "time"):
        while slot not in (*env.state["told"], *env.state["want"][0]):
            env.step(say(ASK["en"][slot].format(d=item["dish"])))
    env.step(call("add_item", **item))
    env.step(call("set_delivery", **slots))
    return env


def test_a_coupon_that_nobody_asked_for_is_told_before_the_order_is_confirmed() -> None:
    env = single_dish(coupon=True)
    coupon = env.task["coupon"]
    assert env.step(summary(env))[0][0].content == f"i have the coupon {coupon}."
    assert not env.state["confirmed"]
    env.step(call("apply_coupon", code=coupon))
    env.step(summary(env))
    assert env.step(call("place_order"))[4]["success"]


def test_an_order_without_the_coupon_that_was_told_is_no_success() -> None:
    env = single_dish(coupon=True)
    env.step(summary(env))
    env.step(summary(env))
    _, _, terminated, _, info = env.step(call("place_order"))
    assert (terminated, info["success"]) == (True, False)


def test_a_coupon_that_the_user_does_not_have_is_refused() -> None:
    env = single_dish(coupon=False)
    for coupon in tasks.COUPONS:
        answers = env.step(call("apply_coupon", code=coupon))[0]
        assert answers[0].content == f"error: unknown coupon {coupon}"
    env.step(summary(env))
    assert env.step(call("place_order"))[4]["success"]


def test_the_user_objects_once_to_a_total_above_its_budget_and_then_pays() -> None:
    env, paid = FoodOrderEnv(level=5), 0
    for task in range(300):
        env.reset(seed=0, options={"task": task})
        budget, objections = env.task["budget"], 0
        while env._live:
            objections += "too much" in env.step(env.oracle().action)[0][-1].content
        assert objections <= bool(budget)
        assert env.success
        paid += bool(budget) and env.state["quote"] > budget
    assert paid


def test_a_question_is_asked_again_until_it_is_answered_rightly() -> None:
    env, task = FoodOrderEnv(), 0
    while True:
        env.reset(seed=0, options={"level": 3, "task": task})
        if env.state["questions"]:
            break
        task += 1
    asked = env.messages[-1].content
    ((dish, fact),) = env.state["questions"]
    assert env.step(say("where to?"))[0][0].content in asked
    assert env.step(say(f"{dish}: {fact} 77."))[0][0].content == "are you sure? please check."
    env.step(env.oracle().action)
    env.step(env.oracle().action)
    assert env.state["questions"] == []


def test_any_change_of_the_order_takes_back_the_users_consent() -> None:
    env = FoodOrderEnv()
    env.reset(seed=0, options={"level": 2})
    until(env, lambda state: state["confirmed"])
    env.step(call("set_delivery", place="oak street"))
    assert env.step(call("place_order"))[0][0].content == "error: nothing quoted yet"
    env.step(call("quote"))
    assert env.step(call("place_order"))[0][0].content == "error: the user has not confirmed"
