"""Playing one episode: every token of the record is accounted for.  A scripted engine stands in for a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer

from agentrl.config import Environment
from agentrl.rollout.chat import ChatRenderer, make_renderer
from agentrl.rollout.engine import Generated, Sampling
from agentrl.rollout.env_actor import EnvHost
from agentrl.rollout.env_client import EnvClient, EnvLost
from agentrl.rollout.episode import Limits, play_episode
from agentrl.types import EpisodeSpec, Injection, PolicyVersion, Trajectory
from envs.contract import AssistantMessage, Label, say

FOOD = "agentrl/FoodOrder-v0"
LIMITS = Limits(max_turn_tokens=400, max_model_len=8000)


@pytest.fixture(scope="module")
def chat(tiny_model_dir) -> ChatRenderer:
    return make_renderer(AutoTokenizer.from_pretrained(tiny_model_dir), "chatml")


@pytest.fixture
def host() -> EnvHost:
    return EnvHost([Environment(id=FOOD, kwargs={"compact_tools": True})])


class Scripted:
    """Says what `write(prompt_ids, turn)` returns as ids; logprob of its n-th token is -n."""

    def __init__(self, write) -> None:
        self.write, self.prompts, self.samplings = write, [], []
        self.version = PolicyVersion(3)

    async def generate(self, prompt_ids, sampling: Sampling) -> Generated:
        ids = self.write(list(prompt_ids), len(self.prompts))[: sampling.max_tokens]
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        return Generated(ids, [-float(n) for n in range(len(ids))], "stop", PolicyVersion(3), PolicyVersion(4))


def spec(**changes) -> EpisodeSpec:
    return EpisodeSpec(**{"episode_id": "e", "env": FOOD, "level": 1, "task": 5, "seed": 11, **changes})


def play(one: EpisodeSpec, engine: Scripted, chat: ChatRenderer, host: EnvHost, limits: Limits = LIMITS) -> Trajectory:
    async def run() -> Trajectory:
        async def send(calls):
            return host.call(calls)

        return await play_episode(one, engine, chat, EnvClient(0, send), limits, [""])

    return asyncio.run(run())


def expert(chat: ChatRenderer, host: EnvHost) -> Scripted:
    """Writes what the environment's oracle would say."""
    return Scripted(lambda prompt, turn: chat.render_assistant(host._env("e#0").oracle().action))


def mumble(chat: ChatRenderer) -> Scripted:
    return Scripted(lambda prompt, turn: chat.render_assistant(say("hm")))


def test_an_expert_finishes_in_as_many_turns_as_the_oracle_said(chat, host):
    record = play(spec(), expert(chat, host), chat, host)
    assert (record.terminated, record.truncated, record.success, record.failure) == (True, False, True, None)
    assert len(record.turns) == record.oracle_turns
    assert record.turns[-1].steps_left == 0
    assert all(turn.label is Label.OK for turn in record.turns)
    assert record.signature


def test_each_prompt_is_the_previous_prompt_and_turn_byte_for_byte(chat, host):
    engine = expert(chat, host)
    record = play(spec(), engine, chat, host)
    ids = record.samples[0].token_ids_T.tolist()
    for turn, prompt in zip(record.turns, engine.prompts, strict=True):
        assert prompt == ids[: turn.start]


def test_masks_cover_exactly_what_the_student_sampled_the_stop_token_included(chat, host):
    record = play(spec(), expert(chat, host), chat, host)
    (sample,) = record.samples
    expected = np.full(len(sample.token_ids_T), -1)
    for turn in record.turns:
        expected[turn.start : turn.end] = turn.index
        assert sample.token_ids_T[turn.end - 1] == chat.stop_token_ids[0]
        np.testing.assert_array_equal(sample.logprobs_T[turn.start : turn.end], -np.arange(turn.end - turn.start))
    np.testing.assert_array_equal(sample.turn_ids_T, expected)
    np.testing.assert_array_equal(sample.trainable_T, expected >= 0)
    np.testing.assert_array_equal(np.isnan(sample.logprobs_T), expected < 0)
    assert record.n_generated == int((expected >= 0).sum())


def test_a_turn_carries_the_versions_it_was_sampled_with(chat, host):
    assert play(spec(), mumble(chat), chat, host).turns[0].versions == (3, 4)


def test_the_turn_cap_truncates_and_never_succeeds(chat, host):
    record = play(spec(max_turns=2), mumble(chat), chat, host)
    assert (len(record.turns), record.terminated, record.truncated, record.success) == (2, False, True, False)


def test_a_plan_may_cut_an_episode_some_turns_after_its_first_error(chat, host):
    record = play(spec(max_turns_after_error=2), mumble(chat), chat, host)
    assert record.turns[0].first_error
    assert (len(record.turns), record.terminated, record.truncated) == (3, False, True)


def test_an_error_that_was_forced_upon_the_student_starts_no_count(chat, host):
    forced = Injection(host._make(FOOD).errors[0], 1)
    record = play(spec(max_turns_after_error=2, inject=forced), expert(chat, host), chat, host)
    assert record.turns[1].author == "injected"
    assert len(record.turns) > 4
    record = play(spec(max_turns_after_error=2, inject=replace(forced, turn=0)), mumble(chat), chat, host)
    assert [turn.author for turn in record.turns] == ["injected", "student", "student", "student"]


def test_an_episode_without_an_error_is_never_cut_by_that(chat, host):
    record = play(spec(max_turns_after_error=1), expert(chat, host), chat, host)
    assert record.success


def test_an_environment_that_died_with_its_actor_loses_the_episode_and_is_no_failure_of_the_task(chat, host):
    def forget(prompt, turn):
        host._forget("e#0")
        return chat.render_assistant(say("hm"))

    with pytest.raises(EnvLost, match="the actor was restarted") as lost:
        play(spec(), Scripted(forget), chat, host)
    assert not lost.value.actor_gone  # it answered: it must not be taken out of service again


def test_an_actor_that_does_not_answer_is_gone():
    async def send(calls):
        raise ConnectionError("no such actor")

    async def run():
        await EnvClient(0, send).call("e", "oracle")

    with pytest.raises(EnvLost, match="ConnectionError") as lost:
        asyncio.run(run())
    assert lost.value.actor_gone


def test_an_environment_that_raised_is_never_played_in_again(chat, host, monkeypatch):
    made = host._make(FOOD)
    with monkeypatch.context() as broken:
        broken.setattr(type(made), "step", lambda self, action: 1 / 0)
        assert play(spec(), mumble(chat), chat, host).failure
        host._forget("e#0")
    assert not host._spare.get(FOOD)
    assert play(spec(max_turns=1), mumble(chat), chat, host).failure is None
    host._forget("e#0")
    assert len(host._spare[FOOD]) == 1


def test_a_silent_actor_is_told_from_a_busy_episode():
    async def run(delay_s: float) -> bool:
        async def send(calls):
            await asyncio.sleep(delay_s)
            return []

        return await EnvClient(0, send).answers(0.05)

    assert asyncio.run(run(0.0))
    assert not asyncio.run(run(1.0))


def test_the_last_sample_ends_with_the_observation_and_the_next_generation_prompt(chat, host):
    record = play(spec(max_turns=1), mumble(chat), chat, host)
    tail = record.samples[-1].token_ids_T[record.turns[-1].end :].tolist()
    assert tail == chat.bridge(record.turns[-1].observation)


def test_a_turn_cut_by_the_length_limit_is_truncated_and_gets_no_stop_token_as_its_own(chat, host):
    record = play(spec(max_turns=2), mumble(chat), chat, host, Limits(max_turn_tokens=1, max_model_len=8000))
    turn, sample = record.turns[0], record.samples[0]
    assert (turn.finish, turn.action.truncated, turn.label) == ("length", True, Label.TRUNCATED)
    assert turn.end - turn.start == 1
    assert sample.token_ids_T[turn.end] == chat.stop_token_ids[0]
    assert not sample.trainable_T[turn.end]


def test_the_context_length_truncates_and_no_sample_is_longer(chat, host):
    opening = len(play(spec(max_turns=1), mumble(chat), chat, host).samples[0].token_ids_T)
    record = play(spec(), mumble(chat), chat, host, Limits(max_turn_tokens=50, max_model_len=opening + 40))
    assert record.truncated
    assert not record.terminated
    assert len(record.samples[0].token_ids_T) == opening + 40


def test_an_opening_that_fills_the_context_is_a_failure_that_says_what_to_raise(chat, host):
    record = play(spec(), mumble(chat), chat, host, Limits(max_turn_tokens=5, max_model_len=20))
    assert "student.max_model_len (20): raise it" in record.failure
    assert record.turns == []


def test_an_injected_turn_is_played_but_not_trained_on(chat, host):
    error = host._make(FOOD).errors[0]
    record = play(spec(inject=Injection(error, turn=0), max_turns=2), mumble(chat), chat, host)
    injected, own = record.turns[:2]
    sample = record.samples[0]
    assert (injected.author, own.author) == ("injected", "student")
    assert injected.label is not Label.OK
    assert injected.first_error
    assert sample.token_ids_T[injected.start : injected.end].tolist() == chat.render_assistant(injected.action)
    assert not sample.trainable_T[injected.start : injected.end].any()
    assert np.isnan(sample.logprobs_T[injected.start : injected.end]).all()


def test_an_environment_that_raises_is_a_failure_not_a_reward(chat, host, monkeypatch):
    record = play(spec(env="agentrl/Nowhere-v0"), mumble(chat), chat, host)
    assert "environment, reset: KeyError" in record.failure
    made = host._make(FOOD)
    monkeypatch.setattr(type(made), "step", lambda self, action: 1 / 0)
    record = play(spec(), mumble(chat), chat, host)
    assert record.failure == "environment, step: ZeroDivisionError: division by zero"
    assert record.turns == []


def test_every_turn_has_its_own_seed_and_the_same_spec_the_same_seeds(chat, host):
    first, again = mumble(chat), mumble(chat)
    play(spec(max_turns=3), first, chat, host)
    play(spec(max_turns=3), again, chat, host)
    seeds = [sampling.seed for sampling in first.samplings]
    assert len(set(seeds)) == 3
    assert seeds == [sampling.seed for sampling in again.samplings]


def test_a_template_that_rewrites_history_starts_a_new_sample_and_none_are_merged(host, tiny_model_dir):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    qwen3 = make_renderer(tokenizer, "qwen3")
    engine = mumble(qwen3)
    record = play(spec(max_turns=2), engine, qwen3, host)
    assert [turn.sample for turn in record.turns] == [0, 1]
    for turn, prompt in zip(record.turns, engine.prompts, strict=True):
        assert record.samples[turn.sample].token_ids_T[: turn.start].tolist() == prompt
        assert set(record.samples[turn.sample].turn_ids_T.tolist()) == {-1, turn.index}


def test_calls_of_many_episodes_travel_together():
    batches = []

    async def send(calls):
        batches.append(len(calls))
        await asyncio.sleep(0.01)
        return [None] * len(calls)

    async def run():
        client = EnvClient(0, send)
        await asyncio.gather(*(client.call(f"e{i}", "oracle") for i in range(50)))

    asyncio.run(run())
    assert batches == [50]


def test_an_action_of_the_wrong_kind_from_an_environment_is_its_failure(chat, host, monkeypatch):
    made = host._make(FOOD)
    monkeypatch.setattr(type(made), "inject", lambda self, error, rng: "text")
    record = play(spec(inject=Injection("x", 0)), mumble(chat), chat, host)
    assert record.failure == "environment, inject: got str, not AssistantMessage"
    assert isinstance(say("x"), AssistantMessage)
