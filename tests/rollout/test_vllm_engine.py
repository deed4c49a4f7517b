"""vLLM against transformers: the same prompt gives the same log-probabilities, before and after a weight sync.

One engine, in a Ray actor of the pool, serves the whole file: it takes a while to start.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from agentrl.rollout.engine import RequestRefused, Sampling
from agentrl.rollout.pool import RolloutPool
from agentrl.types import WeightSnapshot, tensor_digests
from tests.learner.examples import VOCABULARY

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]
START_S = 900
GAP = 1e-4
PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def pool(ray_cluster, make_job):
    pool = RolloutPool(
        make_job(engine={"type": "vllm", "kv_cache_gib": 0.1}, workers=1, max_turn_tokens=16, episode_timeout_s=600),
        start_timeout_s=START_S,
    )
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def oracle(tiny_model_dir):
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


def generate(pool, temperature: float, prompt=PROMPT, n: int = 24, seed: int = 5):
    async def run(worker):
        engine, _ = await worker._ready()
        return await engine.generate(prompt, Sampling(temperature, n, seed))

    return ray.get(pool.workers.manager.actors()[0].apply.remote(run), timeout=START_S)


@torch.inference_mode()
def logprobs_of(model, prompt, ids, temperature: float = 1.0) -> np.ndarray:
    logits_T_V = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1, :VOCABULARY]
    logprobs_T_V = torch.log_softmax(logits_T_V / temperature, dim=-1)
    return logprobs_T_V[torch.arange(len(ids)), torch.tensor(ids)].numpy()


@torch.inference_mode()
def greedy(model, prompt, n: int, stop: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < n and stop not in ids:
        ids.append(int(model(torch.tensor([[*prompt, *ids]])).logits[0, -1, :VOCABULARY].argmax()))
    return ids


def snapshot(model, version: int) -> WeightSnapshot:
    tied = set(model.all_tied_weights_keys or ())
    data = save({name: t.contiguous() for name, t in model.state_dict().items() if name not in tied})
    return WeightSnapshot(version, ray.put(data), tensor_digests(data))


def changed_copy(model):
    changed = AutoModelForCausalLM.from_config(model.config).eval()
    changed.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return changed


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_behaviour_logprobs_are_those_of_the_sampling_distribution(pool, oracle, temperature):
    made = generate(pool, temperature)
    expected = logprobs_of(oracle, PROMPT, made.token_ids, temperature)
    np.testing.assert_allclose(made.logprobs, expected, atol=GAP, rtol=0)


def test_greedy_logprobs_are_those_at_temperature_one(pool, oracle):
    made = generate(pool, 0.0)
    assert made.token_ids == greedy(oracle, PROMPT, 24, oracle.config.eos_token_id)
    np.testing.assert_allclose(made.logprobs, logprobs_of(oracle, PROMPT, made.token_ids), atol=GAP, rtol=0)


def test_a_seed_decides_what_is_sampled(pool):
    assert generate(pool, 1.0, seed=8).token_ids == generate(pool, 1.0, seed=8).token_ids
    assert generate(pool, 1.0, seed=8).token_ids != generate(pool, 1.0, seed=9).token_ids


def test_a_sampled_stop_token_ends_the_turn_and_is_part_of_it(pool, oracle):
    stop = oracle.config.eos_token_id
    turns = [generate(pool, 2.0, n=500, seed=seed) for seed in range(4)]
    stopped = [turn for turn in turns if turn.finish == "stop"]
    assert stopped
    for turn in stopped:
        assert turn.token_ids[-1] == stop
        assert stop not in turn.token_ids[:-1]
        assert len(turn.logprobs) == len(turn.token_ids)


def test_seeded_prompts_that_do_not_fit_into_one_step_are_all_answered(pool):
    async def run(worker):
        engine, _ = await worker._ready()
        prompts = [[40 + (i + j) % 300 for j in range(500)] for i in range(30)]
        return await asyncio.gather(*(engine.generate(p, Sampling(1.0, 2, i)) for i, p in enumerate(prompts)))

    made = ray.get(pool.workers.manager.actors()[0].apply.remote(run), timeout=START_S)
    assert len(made) == 30


def test_scores_are_the_learners_for_parity(pool, oracle):
    (scores,) = pool.score([PROMPT], [0])[0]
    np.testing.assert_allclose(scores, logprobs_of(oracle, PROMPT[:1], PROMPT[1:]), atol=GAP, rtol=0)


def test_episodes_are_played_with_the_real_engine(pool, oracle, make_specs):
    records = pool.collect(make_specs(16, "real"))
    assert all(record.failure is None for record in records)
    for record in records[:4]:
        (sample,) = record.samples
        ids = sample.token_ids_T.tolist()
        for turn in record.turns:
            expected = logprobs_of(oracle, ids[: turn.start], ids[turn.start : turn.end])
            np.testing.assert_allclose(sample.logprobs_T[turn.start : turn.end], expected, atol=GAP, rtol=0)


def test_after_a_sync_the_engine_answers_from_the_new_weights_tied_output_layer_and_cached_prefix_included(
    pool, oracle
):
    before = generate(pool, 0.0).token_ids  # leaves the prompt in the prefix cache
    changed = changed_copy(oracle)
    pool.sync_weights(snapshot(changed, 1))
    made = generate(pool, 0.0)
    assert made.token_ids == greedy(changed, PROMPT, 24, oracle.config.eos_token_id) != before
    np.testing.assert_allclose(made.logprobs, logprobs_of(changed, PROMPT, made.token_ids), atol=GAP, rtol=0)
    np.testing.assert_allclose(
        pool.score([PROMPT], [0])[0][0], logprobs_of(changed, PROMPT[:1], PROMPT[1:]), atol=GAP, rtol=0
    )
    assert made.version_first == made.version_last == 1
    pool.sync_weights(snapshot(oracle, 2))


def test_a_turn_that_a_sync_falls_into_says_so_and_goes_on(pool, oracle, tmp_path):
    path = str(tmp_path / "weights.safetensors")
    Path(path).write_bytes(ray.get(snapshot(oracle, 3).ref))

    async def sync_in_mid_turn(worker):
        engine, _ = await worker._ready()
        before, stops, engine._stops = engine.version, engine._stops, []
        turn = asyncio.create_task(engine.generate(PROMPT, Sampling(1.0, 900, 1)))
        await asyncio.sleep(0.3)
        await engine.load_weights(path, before + 1)
        engine._stops = stops
        return before, await turn

    before, made = ray.get(pool.workers.manager.actors()[0].apply.remote(sync_in_mid_turn), timeout=START_S)
    assert (made.version_first, made.version_last) == (before, before + 1)
    np.testing.assert_allclose(made.logprobs, logprobs_of(oracle, PROMPT, made.token_ids), atol=GAP, rtol=0)


def test_a_request_that_is_refused_costs_that_request_only(pool):
    with pytest.raises(RequestRefused, match="refused a request of 1100 tokens"):
        generate(pool, 1.0, prompt=[40] * 1100)
    assert generate(pool, 0.0).token_ids
    assert pool.take_events() == []


def kill_engine(pool) -> None:
    generate(pool, 0.0)  # a worker that was started again has an engine only from its first use on
    pid = ray.get(pool.workers.manager.actors()[0].apply.remote(lambda worker: os.getpid()), timeout=START_S)
    engine = [
        p
        for p in psutil.Process(pid).children(recursive=True)
        if "EngineCore" in p.name() or "EngineCore" in " ".join(p.cmdline())
    ]
    os.kill(engine[0].pid, signal.SIGKILL)


def test_an_engine_that_died_before_a_sync_is_replaced_by_one_that_has_the_weights_and_passes_the_check(pool, oracle):
    kill_engine(pool)
    changed, checked = changed_copy(oracle), []
    pool.sync_weights(snapshot(changed, 4), lambda workers: checked.append(pool.score([PROMPT], workers)))
    events = pool.take_events()
    assert "rollout worker 0 lost" in events[0]
    assert "rollout worker 0 healed" in events[-1]
    expected = logprobs_of(changed, PROMPT[:1], PROMPT[1:])
    np.testing.assert_allclose(checked[-1][0][0], expected, atol=GAP, rtol=0)
    assert generate(pool, 0.0).version_first == 4
    pool.sync_weights(snapshot(oracle, 5))


def test_an_engine_that_dies_is_found_by_its_episodes_and_a_fresh_one_finishes_them(pool, make_specs):
    kill_engine(pool)
    records = pool.collect(make_specs(8, "engine"))
    assert all(record.failure is None for record in records)
    assert any("rollout worker 0 lost" in event for event in pool.take_events())
    assert {version for record in records for turn in record.turns for version in turn.versions} == {
        pool._snapshot.version
    }


def test_a_killed_worker_leaves_no_engine_process_behind(pool, make_specs):
    pid = ray.get(pool.workers.manager.actors()[0].apply.remote(lambda worker: os.getpid()), timeout=START_S)
    family = psutil.Process(pid).children(recursive=True)
    assert family
    os.kill(pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, [p.cmdline() for p in alive]


def test_a_deterministic_engine_repeats_itself_bit_by_bit_whatever_else_is_asked(ray_cluster, make_job):
    engine = {"type": "vllm", "kv_cache_gib": 0.1, "deterministic": True}
    pool = RolloutPool(make_job(engine=engine, workers=1, max_turn_tokens=16), start_timeout_s=START_S)

    async def together(worker, n: int):
        engine, _ = await worker._ready()
        prompts = [list(range(40, 60 + 7 * i)) for i in range(n)]
        return await asyncio.gather(*(engine.generate(p, Sampling(1.0, 24, 5)) for p in prompts))

    try:
        actor = pool.workers.manager.actors()[0]
        alone, crowded = (ray.get(actor.apply.remote(together, n=n), timeout=START_S) for n in (1, 6))
    finally:
        pool.close()
    assert alone[0].token_ids == crowded[0].token_ids
    assert list(alone[0].logprobs) == list(crowded[0].logprobs)
