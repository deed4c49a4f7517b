"""The table of the learning benchmark is made of what it says it is made of."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from agentrl.config import Job, load_job
from agentrl.learner.losses import support_kl
from benchmarks import learning
from tests.learner.examples import make_trajectory

QUICKSTART = Path(__file__).resolve().parent.parent / "deploy/jobs/quickstart.yaml"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(learning, "RESULTS", tmp_path)
    (tmp_path / "learning").mkdir()
    return load_job(QUICKSTART, learning.SUITE)


def write(method: str, seed: int, job: Job, success: float) -> None:
    report = {"by_level": {"3": {measure: {"mean": success} for measure in learning.MEASURES}}}
    made = {"before": report, "after": report, "turns": 7, "job": learning._recipe(job)}
    learning.path_of(method, seed).write_text(json.dumps(made))


def test_imitation_is_cross_entropy() -> None:
    trajectory = make_trajectory(0, (4,))
    said = learning.one_hot(trajectory, 0)
    log_p_n_V = torch.randn(4, 384).log_softmax(-1)
    ids_n_1 = torch.from_numpy(said.support_ids_nk).long()
    on_support = log_p_n_V.gather(1, ids_n_1)
    kl_n = support_kl(
        on_support,
        torch.from_numpy(said.support_logprobs_nk),
        torch.from_numpy(said.tail_logprobs_n),
        ids_n_1 >= 0,
        "forward",
    )
    torch.testing.assert_close(kl_n, -on_support[:, 0])
    assert ids_n_1[:, 0].tolist() == trajectory.samples[0].token_ids_T[6:10].tolist()


def test_an_interval_over_seeds_is_students() -> None:
    """Mean 2, standard deviation 1 of 3: 4.303 is the 97.5 % point of Student's t with 2 degrees of freedom."""
    found = learning.interval([1.0, 2.0, 3.0])
    assert (found["mean"], found["n"]) == (2.0, 3)
    assert found["high"] - 2.0 == 2.0 - found["low"] == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert learning.interval([1.0])["low"] is None


def test_a_table_has_a_row_for_each_method_and_one_for_the_start(job: Job) -> None:
    for seed, success in enumerate((0.25, 0.75)):
        write("opd", seed, job, success)
    write("sft", 0, job, 0.5)
    rows = learning.summarise(["opd", "sft"], [0, 1])
    assert [(row["method"], row["level"], row["success"]["n"]) for row in rows] == [
        ("start", 3, 1),
        ("opd", 3, 2),
        ("sft", 3, 1),
    ]
    assert rows[1]["success"]["mean"] == 0.5


def test_runs_of_another_job_are_not_put_into_the_table(job: Job) -> None:
    write("opd", 0, job, 0.5)
    same = load_job(QUICKSTART, [*learning.SUITE, "seed=3", "name=other"])
    assert learning.read("opd", 0, same)["turns"] == 7
    assert learning.read("opd", 1, same) is None
    with pytest.raises(SystemExit, match=r"opd-seed0\.json was made by another job"):
        learning.read("opd", 0, load_job(QUICKSTART, [*learning.SUITE, "steps=7"]))
