"""`agentrl evaluate` and `agentrl rollout` on real actors, without a teacher, on the engine that starts in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import Job, parse_job
from agentrl.evaluation.command import evaluate_job, rollout_job
from agentrl.observe.progress import Progress
from agentrl.observe.records import read_records

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def job(tiny_model_dir: Path) -> Job:
    return parse_job(
        {
            "name": "played",
            "environments": [{"id": "agentrl/FoodOrder-v0"}],
            "student": {"path": str(tiny_model_dir), "max_model_len": 1024},
            "teacher": {"scorer": {"path": "gone"}},
            "rollout": {
                "engine": {"type": "transformers"},
                "workers": 1,
                "max_turns": 2,
                "max_turn_tokens": 8,
                "cpus_per_worker": 0.5,
                "cpus_per_env_actor": 0.5,
            },
            "evaluation": {"tasks": 2, "levels": [1, 2], "max_turns": 2},
        }
    )


def test_evaluate_plays_every_task_of_every_level_clean_and_after_an_error(ray_cluster, job: Job) -> None:
    report = evaluate_job(job, Progress(job, live=False))
    assert report.name == "played"
    assert sorted((t.spec.level, t.spec.inject is None) for t in report.trajectories) == sorted(
        (level, clean) for level in (1, 2) for clean in (False, True) for _ in range(2)
    )
    assert [t.failure for t in report.trajectories] == [None] * 8
    assert (report.overall.success.n, report.by_level[1].success.n) == (4, 2)


def test_rollout_plays_training_tasks_and_keeps_them(ray_cluster, job: Job, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl.zst"
    played = rollout_job(job, Progress(job, live=False), episodes=3, out=out)
    assert [(t.spec.split, t.failure) for t in played] == [("train", None)] * 3
    assert [r.trajectory.spec for r in read_records(out)] == [t.spec for t in played]
