"""What every environment must pass.  A test class inherits `Gates` and names its environment."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.base import DialogueEnv
from envs.calls import Language, Tool
from envs.contract import AssistantMessage, Label, Message, ParseStatus, ToolCall, call, say
from envs.splits import LANGUAGES, split_of
from tests.envs.players import HELLO, Talk, oddly_spelt, play_expert, random_action, transcripts

REPO = Path(__file__).resolve().parent.parent.parent
WILD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**5000, -(10**400), 1.5, float("nan"), float("inf"), 1e308, "", "\ud800", "\x00", "😀" * 3000,
    "</tool_call>", '{"a": 1}', "02134", "1e1000000000", [], {}, [[[]]], {"\udfff": [1, {"b": None}]},
)  # fmt: skip
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


def nested(depth: int) -> list[Any]:
    """A list in a list in a list, deeper than Python's recursion limit allows to print."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def fitting(tool: Tool) -> dict[str, Any]:
    """Arguments that a tool's schema takes."""
    plain: dict[str, Any] = {"integer": 1, "number": 1, "string": "x"}
    schemas = tool.parameters["properties"]
    return {
        key: schemas[key].get("enum", [plain[schemas[key]["type"]]])[0] for key in tool.parameters.get("required", ())
    }


def chance_of_at_most(successes: int, trials: int, rate: float) -> float:
    """P(X <= successes), X binomial: below 0.05, the true rate is below `rate` with 95 % confidence."""
    return sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(successes + 1))


class Gates:
    """Inherit, name `env_class`, `env_id`, `talk` and `label_cases`."""

    env_class: ClassVar[type[DialogueEnv]]
    env_id: ClassVar[str]
    #: what a random policy says
    talk: ClassVar[Talk] = HELLO
    #: levels whose turn limit leaves no room to recover from a mistake
    levels_without_room: ClassVar[frozenset[int]] = frozenset()
    #: label -> a function that brings a fresh environment to a state and returns an action with that label
    label_cases: ClassVar[dict[Label, Callable[[Any], AssistantMessage]]]
    seeds: ClassVar[int] = 1000
    seeds_zh: ClassVar[int] = 150

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "language" in metafunc.fixturenames:
            metafunc.parametrize("language", LANGUAGES)
        if "level" in metafunc.fixturenames:
            metafunc.parametrize("level", range(1, len(self.env_class.levels()) + 1))
        if "error" in metafunc.fixturenames:
            metafunc.parametrize("error", self.env_class.errors)
        if "wanted_label" in metafunc.fixturenames:
            metafunc.parametrize("wanted_label", sorted(self.env_class.reachable_labels, key=list(Label).index))

    # ---- The expert ----------------------------------------------------------------------------------------------

    def test_the_expert_succeeds_on_every_seed_of_every_level(self, level: int) -> None:
        env = self.env_class()
        for seed in range(self.seeds):
            env.reset(seed=seed, options={"level": level})
            success, _ = play_expert(env)
            assert success, f"seed {seed}\n{env.messages}"

    def test_the_expert_succeeds_in_chinese_and_on_held_out_tasks(self, level: int) -> None:
        env = self.env_class(language="zh", split="heldout")
        for seed in range(self.seeds_zh):
            env.reset(seed=seed, options={"level": level})
            success, _ = play_expert(env)
            assert success, f"seed {seed}\n{env.messages}"

    def test_an_expert_turn_is_labelled_ok_and_leaves_one_step_less(self, level: int) -> None:
        env = self.env_class()
        for seed in range(25):
            env.reset(seed=seed, options={"level": level})
            done = False
            while not done:
                advice = env.oracle()
                assert env.label(advice.action) is Label.OK
                assert env.canonical(advice.action) in advice.acceptable
                _, _, terminated, truncated, info = env.step(advice.action)
                assert info["steps_left"] == advice.steps_left - 1
                assert not info["first_error"]
                done = terminated or truncated

    def test_every_acceptable_action_is_as_good_as_the_experts(self, level: int) -> None:
        env = self.env_class()
        for seed in range(10):
            env.reset(seed=seed, options={"level": level})
            done = False
            while not done:
                before, steps_left = env.snapshot(), env.oracle().steps_left
                action, others = env.advise()
                for other in others:
                    assert env.label(other) is Label.OK
                    assert env.step(other)[4]["steps_left"] <= steps_left - 1
                    env.restore(before)
                _, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated

    def test_the_steps_left_are_those_of_a_plan_made_anew_however_a_turn_is_spelt(
        self, level: int, language: Language
    ) -> None:
        env, fresh = self.env_class(language=language), self.env_class(language=language)
        rng, done = random.Random(level), True
        for step in range(200):
            if done:
                env.reset(seed=step, options={"level": level})
            advice = env.oracle()
            action = advice.action if rng.random() < 0.8 else random_action(env, rng, self.talk)
            if rng.random() < 0.5:
                action = oddly_spelt(action, rng, self.talk)
            if env.canonical(action) in advice.acceptable:
                assert env.label(action) is Label.OK
            _, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            fresh.restore(env.snapshot())
            assert info["steps_left"] == fresh._plan.steps_left(), action

    def test_asking_the_oracle_or_for_a_label_changes_nothing(self, level: int) -> None:
        env = self.env_class()
        rng = random.Random(level)
        for seed in range(5):
            env.reset(seed=seed, options={"level": level})
            before = env.snapshot()
            env.oracle()
            for _ in range(5):
                one, two = (random_action(env, rng, self.talk) for _ in range(2))
                env.label(one)
                env.label(AssistantMessage(tool_calls=one.tool_calls + two.tool_calls))
            assert env.snapshot() == before

    def test_a_random_policy_succeeds_on_less_than_two_percent(self, level: int, language: Language) -> None:
        env, rng, successes = self.env_class(language=language), random.Random(level), 0
        episodes = 400 if self.env_class.levels()[level - 1].max_turns <= 20 else 200
        for seed in range(episodes):
            env.reset(seed=seed, options={"level": level})
            done = False
            while not done:
                _, _, terminated, truncated, info = env.step(random_action(env, rng, self.talk))
                done = terminated or truncated
            successes += info["success"]
        assert chance_of_at_most(successes, episodes, 0.02) < 0.05, f"{successes} of {episodes} episodes succeeded"

    def test_the_expert_recovers_from_an_early_injected_error_within_the_turn_limit(
        self, error: str, level: int, language: Language
    ) -> None:
        limit = 200 if level in self.levels_without_room else None
        env = self.env_class(level=level, language=language, max_turns=limit)
        for seed in range(12):
            env.reset(seed=seed)
            play_expert(env, turns=seed % 4)
            if not env._live:
                continue
            before = env.oracle().steps_left
            answers, _, terminated, truncated, info = env.step(env.inject(error, random.Random(seed)))
            assert answers
            assert answers[0].content
            assert not terminated
            assert not truncated
            assert info["label"] is not Label.OK
            assert info["first_error"]
            assert info["steps_left"] >= before
            assert play_expert(env)[0]

    def test_only_the_levels_said_to_leave_no_room_end_before_a_mistake_is_mended(self, level: int) -> None:
        env = self.env_class(level=level)
        env.reset(seed=0)
        env.step(env.oracle().action)
        env.step(env.inject(self.env_class.errors[0], random.Random(0)))
        assert (not env._live) == (level in self.levels_without_room)

    def test_an_unknown_error_is_refused_by_name(self) -> None:
        env = self.env_class()
        env.reset(seed=0)
        with pytest.raises(ValueError, match="no_such_error"):
            env.inject("no_such_error", random.Random(0))

    # ---- State ---------------------------------------------------------------------------------------------------

    def test_after_a_restore_the_future_is_bit_equal(self, level: int, language: Language) -> None:
        env, fresh = self.env_class(), self.env_class()
        for seed in range(6):
            rng = random.Random(seed)
            env.reset(seed=seed, options={"level": level, "language": language})
            for _ in range(rng.randint(0, 8)):
                action = env.oracle().action if rng.random() < 0.6 else random_action(env, rng, self.talk)
                if any(env.step(action)[2:4]):
                    break
            kept, state_hash = env.snapshot(), env.state_hash()
            fresh.restore(kept)
            assert fresh.snapshot() == kept
            assert fresh.state_hash() == state_hash
            actions: list[AssistantMessage] = []
            futures: list[Any] = []
            while env._live:
                actions.append(env.oracle().action if rng.random() < 0.6 else random_action(env, rng, self.talk))
                futures.append((env.step(actions[-1]), env.snapshot()))
            env.restore(kept)
            for player in (env, fresh):
                assert [(player.step(action), player.snapshot()) for action in actions] == futures

    def test_the_same_seed_gives_the_same_transcript_in_another_process(self) -> None:
        module, name = self.env_class.__module__, self.env_class.__name__
        code = (
            f"from {module} import {name} as Env; from tests.envs.players import transcripts\nprint(transcripts(Env))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPO,
            env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(REPO), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.rstrip("\n") == transcripts(self.env_class)

    def test_the_task_depends_on_level_index_and_split_and_not_on_language_or_seed(self, level: int) -> None:
        env = self.env_class()
        for task in range(5):
            english = env.reset(seed=1, options={"level": level, "task": task})[1]
            chinese = env.reset(seed=2, options={"level": level, "task": task, "language": "zh"})[1]
            assert english["signature"] == chinese["signature"]

    def test_train_and_heldout_signatures_are_disjoint(self, level: int) -> None:
        env = self.env_class()
        signatures = {
            split: {
                env.reset(options={"level": level, "task": task, "split": split})[1]["signature"] for task in range(200)
            }
            for split in ("train", "heldout")
        }
        assert not signatures["train"] & signatures["heldout"]
        assert all(split_of(one) == split for split, ones in signatures.items() for one in ones)

    # ---- Labels and reasoning ------------------------------------------------------------------------------------

    def test_each_label_can_be_reached(self, wanted_label: Label) -> None:
        env = self.env_class(max_turns=100)
        env.reset(seed=0, options={"level": 1, "task": 0})
        action = self.label_cases[wanted_label](env)
        assert env.label(action) is wanted_label
        assert env.step(action)[4]["label"] is wanted_label

    def test_reasoning_is_not_heard(self) -> None:
        one, two = self.env_class(), self.env_class()
        rng = random.Random(0)
        for env in (one, two):
            env.reset(seed=3, options={"level": 2})
        while one._live:
            action = one.oracle().action if rng.random() < 0.7 else random_action(one, rng, self.talk)
            reasoned = AssistantMessage(
                action.content, action.tool_calls, "bye. goodbye. sorry, we cannot. stop. 再见 done"
            )
            assert one.canonical(action) == one.canonical(reasoned)
            assert one.step(action) == two.step(reasoned)

    # ---- Robustness ----------------------------------------------------------------------------------------------

    def test_no_argument_value_raises(self) -> None:
        env = self.env_class(max_turns=10_000, level=len(self.env_class.levels()))
        env.reset(seed=0)
        for value in (*WILD_VALUES, nested(50), nested(100_000)):
            for tool in env.tools.values():
                for name in (*tool.parameters["properties"], "no_such_argument"):
                    if not env._live:
                        env.reset(seed=0)
                    action = call(tool.name, **{**fitting(tool), name: value})
                    env.canonical(action)
                    answers = env.step(action)[0]
                    assert all(isinstance(message, Message) for message in answers)
                    assert "".join(message.content for message in answers).encode("utf-8")
                    env.state_hash()
            env.snapshot()
            env.messages.clear()

    @given(
        texts=st.lists(st.text(max_size=60), min_size=1, max_size=6),
        values=st.lists(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                max_leaves=6,
            ),
            min_size=6,
            max_size=6,
        ),
        seed=st.integers(0, 1000),
    )
    @few
    def test_nothing_said_or_called_raises(self, texts: list[str], values: list[Any], seed: int) -> None:
        env, rng = self.env_class(), random.Random(seed)
        level = 1 + seed % len(self.env_class.levels())
        env.reset(seed=seed, options={"level": level, "language": rng.choice(LANGUAGES)})
        for text, value in zip(texts, values, strict=False):
            tool = env.tools[rng.choice(sorted(env.tools))]
            arguments = {name: value for name in tool.parameters["properties"] if rng.random() < 0.8}
            statuses = (ParseStatus.OK, *ParseStatus)
            status = rng.choice(statuses)
            made = ToolCall(tool.name, arguments if status is ParseStatus.OK else None, status, text)
            for action in (say(text), AssistantMessage(text, (made, made)), AssistantMessage(text, truncated=True)):
                env.canonical(action)
                env.label(action)
                _, _, terminated, truncated, info = env.step(action)
                assert isinstance(info["label"], Label)
                if terminated or truncated:
                    return
                assert env.oracle().steps_left > 0

    def test_calls_after_a_stated_error_in_the_same_message_are_not_run(self) -> None:
        env = self.env_class()
        env.reset(seed=0)
        broken = ToolCall("", None, ParseStatus.INVALID_JSON, "{")
        good = env.inject("unknown_tool", random.Random(0)).tool_calls[0]
        answers = env.step(AssistantMessage(tool_calls=(broken, good)))[0]
        assert [message.role for message in answers] == ["tool"]
        assert "JSON" in answers[0].content

    def test_it_is_made_by_name_and_gymnasiums_checker_passes(self) -> None:
        env = gymnasium.make(self.env_id, level=2, language="en")
        assert isinstance(env.unwrapped, self.env_class)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped, skip_render_check=False)

    def test_compact_tools_are_named_in_the_system_message_and_full_ones_in_the_info(self, level: int) -> None:
        for compact in (True, False):
            env = self.env_class(compact_tools=compact)
            first, info = env.reset(seed=0, options={"level": level})
            assert first[0].role == "system"
            assert all((name in first[0].content) == compact for name in env.tools)
            assert [tool["function"]["name"] for tool in info["tools"]] == ([] if compact else list(env.tools))
