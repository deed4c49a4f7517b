"""The pool: order, healing after SIGKILL, and attempts.  On the transformers engine, which starts in a moment."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load, save
from torch import ones, zeros
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.parity import ParityError, ParityProbe
from agentrl.rollout.catalogue import read_catalogue
from agentrl.rollout.chat import make_renderer
from agentrl.rollout.engine import WeightError
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.weight_file import first_difference, remove_weight_files, write_weight_file
from agentrl.types import WeightSnapshot, tensor_digests
from tests.learner.examples import VOCABULARY

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
START_S = 600
PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def pool(ray_cluster, make_job):
    job = make_job(engine={"type": "transformers"}, workers=2, env_actors=2, episode_timeout_s=200, max_attempts=3)
    pool = RolloutPool(job, start_timeout_s=START_S)
    yield pool
    pool.close()


def kill_soon(pool, group: str, done: threading.Event, after: int) -> None:
    """SIGKILL actor 0 of the group once some episodes are done, from a thread of its own."""
    handle = getattr(pool, group).manager.actors()[0]
    pid = ray.get(handle.apply.remote(lambda actor: os.getpid()), timeout=START_S)

    def wait() -> None:
        done.wait(START_S)
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def collect_with_a_kill(pool, specs, group: str):
    started, seen = threading.Event(), []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 4:
            started.set()

    kill_soon(pool, group, started, 4)
    return pool.collect(specs, on_progress=progress), seen


def test_records_come_back_in_the_order_of_the_specs_and_progress_is_told(pool, make_specs):
    seen = []
    specs = make_specs(12, "order")
    records = pool.collect(specs, on_progress=lambda done, total: seen.append((done, total)))
    assert [r.spec.episode_id for r in records] == [s.episode_id for s in specs]
    assert all(r.failure is None and len(r.turns) == 3 for r in records)
    assert seen[0] == (0, 12)
    assert seen[-1] == (12, 12)
    assert pool.stats.generated_tokens == sum(r.n_generated for r in records)


def test_both_environments_are_played(pool, make_specs):
    (record,) = pool.collect(make_specs(1, "qa", env="agentrl/SearchCalcQA-v0"))
    assert record.failure is None
    assert record.turns


def test_the_same_specs_give_the_same_tokens(pool, make_specs):
    once, again = pool.collect(make_specs(4, "same")), pool.collect(make_specs(4, "same"))
    for a, b in zip(once, again, strict=True):
        assert a.samples[0].token_ids_T.tolist() == b.samples[0].token_ids_T.tolist()


def test_an_episode_id_that_stands_twice_is_refused(pool, make_specs):
    with pytest.raises(ValueError, match="episode x0#0 stands twice"):
        pool.collect([*make_specs(1, "x"), *make_specs(1, "x")])


def test_a_killed_environment_actor_costs_only_its_own_episodes_which_are_played_again(pool, make_specs):
    specs = make_specs(40, "env", max_turns=6)
    pool.take_events()
    records, _ = collect_with_a_kill(pool, specs, "env_actors")
    assert [r.spec.episode_id for r in records] == [s.episode_id for s in specs]
    assert all(r.failure is None for r in records)
    assert {r.spec.attempt for r in records} == {0, 1}
    again = [r for r in records if r.spec.attempt == 1]
    assert all(r.spec.seed != specs[records.index(r)].seed for r in again)
    pool.env_actors.wait(2, START_S)
    events = pool.take_events()
    assert any(e.startswith("environment actor 0 lost") for e in events)
    assert any(e.startswith("environment actor 0 healed") for e in events)


def snapshot_of(tiny_model_dir, version: int, scale: float = 1.0) -> WeightSnapshot:
    """The tiny model's weights, each times `scale`."""
    tensors = load((tiny_model_dir / "model.safetensors").read_bytes())
    data = save({name: tensor * scale for name, tensor in tensors.items()})
    return WeightSnapshot(version, ray.put(data), tensor_digests(data))


def test_a_killed_worker_costs_only_its_own_episodes_and_comes_back_with_the_current_weights(
    pool, make_specs, tiny_model_dir
):
    checked: list[list[int]] = []
    pool.sync_weights(snapshot_of(tiny_model_dir, 7, scale=0.9), lambda workers: checked.append(list(workers)))
    assert checked.pop() == [0, 1]
    before = pool.score([PROMPT], [0, 1])
    np.testing.assert_array_equal(before[0], before[1])
    pool.take_events()
    specs = make_specs(40, "worker", max_turns=6)
    records, _ = collect_with_a_kill(pool, specs, "workers")
    assert [r.spec.episode_id for r in records] == [s.episode_id for s in specs]
    assert all(r.failure is None for r in records)
    assert {r.spec.attempt for r in records} == {0, 1}
    pool.workers.wait(2, START_S)
    events = pool.take_events()
    assert any(e.startswith("rollout worker 0 lost") for e in events)
    assert any(e.startswith("rollout worker 0 healed") for e in events)
    later = pool.collect(make_specs(8, "later"))
    assert {version for r in later for turn in r.turns for version in turn.versions} == {7}
    assert checked == [[0]]
    np.testing.assert_array_equal(pool.score([PROMPT], [0])[0], before[0])


def test_a_worker_that_comes_back_and_fails_the_check_ends_the_collect(pool, make_specs, tiny_model_dir):
    def check(workers) -> None:
        if pool.workers.events:
            raise WeightError(f"{workers} are not what they should be")

    pool.take_events()
    pool.sync_weights(snapshot_of(tiny_model_dir, 7), check)
    with pytest.raises(WeightError, match=r"\[0\] are not what they should be"):
        collect_with_a_kill(pool, make_specs(200, "unsound", max_turns=6), "workers")
    pool.sync_weights(snapshot_of(tiny_model_dir, 7))
    pool.workers.wait(2, START_S)


def test_the_probe_accepts_the_learners_own_weights_and_names_a_worker_that_answers_otherwise(
    pool, make_job, tiny_model_dir
):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()

    def probe_logprobs(prompts):
        with torch.inference_mode():
            return [
                torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1, :VOCABULARY], -1)
                .gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
                .numpy()
                for ids in prompts
            ]

    job = make_job(engine={"type": "transformers"})
    renderer = make_renderer(AutoTokenizer.from_pretrained(tiny_model_dir), job.student.renderer)
    probe = ParityProbe(job, read_catalogue(job), renderer)
    learner: Any = SimpleNamespace(probe_logprobs=probe_logprobs)
    pool.sync_weights(good := snapshot_of(tiny_model_dir, 9), probe.against(learner, pool, good))
    gap = probe.take_gap()
    assert gap is not None
    assert gap <= 1e-4
    assert probe.take_gap() is None
    other = snapshot_of(tiny_model_dir, 10, scale=0.99)
    with pytest.raises(ParityError, match=r"rollout worker 0 and the learner disagree by .* at policy version 10"):
        pool.sync_weights(other, probe.against(learner, pool, other))
    pool.sync_weights(good)


def test_weights_that_differ_from_their_digests_are_refused_by_the_tensors_name(pool, tiny_model_dir):
    good = snapshot_of(tiny_model_dir, 8)
    name = sorted(good.digests)[3]
    bad = WeightSnapshot(8, good.ref, {**good.digests, name: "0" * 64})
    assert pool.first_difference(0, good) is None
    assert pool.first_difference(0, bad) == name
    with pytest.raises(WeightError, match=f"version 8 did not arrive as sent: tensor '{name}' differs"):
        pool.sync_weights(bad)
    pool.sync_weights(good)


def test_an_episode_that_no_attempt_finishes_is_recorded_as_failed(ray_cluster, make_job, make_specs):
    job = make_job(engine={"type": "transformers"}, workers=1, episode_timeout_s=0.001, max_attempts=2)
    pool = RolloutPool(job, start_timeout_s=START_S)
    try:
        (record,) = pool.collect(make_specs(1, "late"))
        assert pool.take_events() == []  # the environment actor answers, whatever the episode waited for
    finally:
        pool.close()
    assert record.failure.startswith("episode late0 took over 0.001 s; it waited for")
    assert record.failure.endswith("(attempt 2 of 2)")
    assert record.spec.attempt == 1


def test_a_digest_is_the_sha256_of_a_tensors_bytes():
    data = save({"a": zeros(2), "b": ones(1)})
    assert tensor_digests(data)["a"] == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
    assert first_difference(data, tensor_digests(data)) is None
    assert first_difference(data, {"a": tensor_digests(data)["a"]}) == "b"


def test_what_is_no_safetensors_file_is_refused():
    with pytest.raises(WeightError, match="not a safetensors file"):
        write_weight_file(b"\x80\x04pickle, perhaps", 1, {}, name="t")


def test_a_weight_file_that_a_dead_worker_left_goes_with_the_next(tmp_path):
    data = save({"a": zeros(2)})
    name = secrets.token_hex(4)
    left, written = (Path(write_weight_file(data, v, tensor_digests(data), name=name)) for v in (1, 2))
    assert not left.exists()
    assert written.read_bytes() == data
    assert written.stat().st_mode & 0o777 == 0o600
    remove_weight_files(name)
    assert not written.exists()


def test_a_folder_that_takes_no_weights_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.rollout.weight_file.SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    data = save({"a": zeros(2)})
    with pytest.raises(WeightError, match=r"cannot write the weights of version 1 \(0 MiB\) into .*gone: .*make room"):
        write_weight_file(data, 1, tensor_digests(data), name="t")


def test_a_lost_actor_is_reported_once_with_the_reason(pool):
    started = time.monotonic()
    pool.take_events()
    pool.env_actors.lose(1, "told so")
    pool.env_actors.lose(1, "told again")
    pool.env_actors.wait(2, START_S)
    first, second = pool.take_events()
    assert first == "environment actor 1 lost: told so"
    assert second.startswith("environment actor 1 healed after")
    assert time.monotonic() - started < START_S
