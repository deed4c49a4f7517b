"""The gang in Ray: training, export, checkpoints, death.  Correctness items 7, 24, 25, 37."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load, load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config import WeightTriple
from agentrl.learner.gang import GangLost, LearnerGang
from agentrl.types import Trajectory, tensor_digests
from tests.learner.examples import VOCABULARY, make_job, make_trajectory

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

WEIGHTS = WeightTriple(kl=0.7, value=0.2, ppo=0.1)
PROBES = [[5, 9, 200, 31], [7, 7, 1]]


def episodes() -> list[Trajectory]:
    return [make_trajectory(seed, (2 + seed, 3)) for seed in range(4)]


def transformers_logprobs(model: torch.nn.Module, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0, :-1, :VOCABULARY].float(), -1)
    return logprobs.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def gang(tiny_model_dir: Path, ray_cluster: str) -> Iterator[LearnerGang]:
    """Two mini-batches a step, Muon: the setting of the demo."""
    gang = LearnerGang(make_job(str(tiny_model_dir), optimizer={"type": "muon"}, minibatches=2))
    yield gang
    gang.close()


def test_a_step_lowers_the_loss_and_counts_a_version(gang: LearnerGang) -> None:
    before = gang.version
    losses = [gang.step(episodes(), WEIGHTS, 0.0)["loss/total"] for _ in range(3)]
    assert losses[2] < losses[0] - 0.2
    assert gang.version == before + 3


def test_a_step_says_what_happened(gang: LearnerGang) -> None:
    failed = make_trajectory(9, failure="the environment raised")
    figures = gang.step([*episodes(), failed], WEIGHTS, 0.0)
    assert figures["learner/episodes"] == 4
    assert figures["learner/failed_episodes"] == 1
    assert figures["learner/trained_tokens"] == 26
    assert {f"grad_norm/{name}" for name in ("total", "kl", "value", "ppo")} <= set(figures)
    assert {"ppo/ess", "ppo/clip_share", "ppo/old_mu_gap", "value/explained_variance"} <= set(figures)
    assert all(np.isfinite(figure) for figure in figures.values())
    assert figures["kl/guided_share"] == 1.0


def test_nothing_to_train_on_changes_no_weight_and_no_version(gang: LearnerGang) -> None:
    before = gang.export_weights()
    figures = gang.step([make_trajectory(0, failure="lost")], WEIGHTS, 0.0)
    after = gang.export_weights()
    assert (after.version, after.digests) == (before.version, before.digests)
    assert figures["learner/episodes"] == 0


def test_exported_weights_are_those_that_the_learner_scores_with(gang: LearnerGang, tiny_model_dir: Path) -> None:
    snapshot = gang.export_weights()
    data = ray.get(snapshot.ref)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    missing, unexpected = model.load_state_dict(load(data), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied to the embeddings
    assert snapshot.digests == tensor_digests(data)
    for ids, logprobs in zip(PROBES, gang.probe_logprobs(PROBES), strict=True):
        np.testing.assert_allclose(logprobs, transformers_logprobs(model, ids), atol=1e-5)


def test_a_saved_model_is_a_folder_that_transformers_loads(gang: LearnerGang, tmp_path: Path) -> None:
    gang.save_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(gang.probe_logprobs(PROBES)[0], transformers_logprobs(model, PROBES[0]), atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template is not None
    assert not any("value" in name for name in model.state_dict())
    head = load_file(tmp_path / "model" / "value_head" / "weights.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in head.items()} == {"weight": (1, 128), "bias": (1,)}


def test_a_resumed_gang_takes_the_step_that_an_uninterrupted_one_takes(gang: LearnerGang, tmp_path: Path) -> None:
    gang.save(tmp_path / "learner")
    version = gang.version
    gang.step(episodes(), WEIGHTS, 0.7)
    straight = gang.export_weights().digests
    gang.restart()
    gang.load(tmp_path / "learner")
    assert gang.version == version
    gang.step(episodes(), WEIGHTS, 0.7)
    assert gang.export_weights().digests == straight


def test_a_checkpoint_is_refused_where_there_is_none(gang: LearnerGang, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no learner checkpoint"):
        gang.load(tmp_path)


def test_without_a_learning_rate_the_ratio_stays_one(gang: LearnerGang) -> None:
    """A warm-up of 10**12 steps leaves nothing of it; two mini-batches would move the ratio otherwise."""
    still = make_job(gang.job.student.path, minibatches=2, schedule={"warmup_steps": 10**12})
    other = LearnerGang(still)
    figures = other.step(episodes(), WEIGHTS, 0.0)
    other.close()
    assert figures["ppo/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert figures["ppo/clip_share"] == 0.0


def test_lora_trains_the_adapter_and_exports_merged_weights(tiny_model_dir: Path, tmp_path: Path) -> None:
    job = make_job(str(tiny_model_dir), lora={"r": 4, "alpha": 8}, optimizer={"type": "adamw", "lr": 1e-2})
    lora = LearnerGang(job)
    losses = [lora.step(episodes(), WEIGHTS, 0.0)["loss/total"] for _ in range(3)]
    lora.save(tmp_path / "learner")
    weights = lora.export_weights()
    probed = lora.probe_logprobs(PROBES)
    lora.restart()
    lora.load(tmp_path / "learner")
    assert lora.export_weights().digests == weights.digests
    lora.close()
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    missing, unexpected = model.load_state_dict(load(ray.get(weights.ref)), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    np.testing.assert_allclose(probed[0], transformers_logprobs(model, PROBES[0]), atol=1e-5)
    assert losses[2] < losses[0]


def test_a_dead_rank_ends_the_gang_and_names_itself(tiny_model_dir: Path, tmp_path: Path) -> None:
    pair = LearnerGang(make_job(str(tiny_model_dir), ranks=2, optimizer={"type": "adamw"}))
    pair.step(episodes(), WEIGHTS, 0.0)
    pair.save(tmp_path / "learner")
    os.kill(ray.get(pair.ranks[1].process_id.remote(), timeout=60), signal.SIGKILL)
    with pytest.raises(GangLost, match="learner rank 1 died"):
        pair.step(episodes(), WEIGHTS, 0.0)
    with pytest.raises(GangLost, match="restart it"):
        pair.export_weights()
    pair.restart()
    pair.load(tmp_path / "learner")
    assert pair.step(episodes(), WEIGHTS, 0.0)["loss/total"] > 0
    pair.close()


def test_a_rank_that_does_not_answer_in_time_is_named(gang: LearnerGang) -> None:
    other = LearnerGang(gang.job, call_timeout_s=1e-3)
    with pytest.raises(GangLost, match=r"learner rank 0 did not finish 'export'"):
        other.export_weights()
