"""The summary says what a run came to, from its folder alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agentrl.evaluation.suite import score
from agentrl.observe import summary as summary_room
from agentrl.observe.run_folder import RunFolder
from agentrl.observe.summary import git_commit, versions, write_summary


class FakeReport:
    trajectories = ()

    def __init__(self, name: str, success: float) -> None:
        self.name, self.success = name, success

    def to_dict(self):
        return {"name": self.name, "success": {"mean": self.success, "low": 0.1, "high": 0.9, "n": 9}, "by_level": {}}


@pytest.fixture
def folder(job) -> RunFolder:
    folder = RunFolder.create(job)
    lines = [
        {"step": 0, "time_s": 0, "evaluation": FakeReport("before", 0.25).to_dict()},
        {"step": 0, "version": 1, "phase_s": {"collect": 2.0}, "rollout": {"tokens": 100, "episodes": 8, "failed": 1}},
        {
            "step": 1,
            "version": 2,
            "phase_s": {"collect": 3.0},
            "rollout": {"tokens": 400, "episodes": 8},
            "promoted": 2,
        },
        {"step": 2, "version": 3, "parity_gap": 2e-6},
        {"step": 3, "version": 4, "parity_gap": 1e-6, "evaluation": None},
    ]
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_figures_of_a_run(folder):
    folder.record_evaluation(4, FakeReport("after", 0.75))
    summary = write_summary(folder, comparison={"rows": []})
    assert summary["name"] == "demo"
    assert (summary["steps"], summary["policy_version"]) == (4, 4)
    assert (summary["tokens_generated"], summary["rollout_tokens_per_s"]) == (500, 100.0)
    assert (summary["episodes"], summary["episodes_failed"]) == (16, 1)
    assert summary["parity_gap_max"] == 2e-6
    assert summary["levels"] == [{"step": 2, "level": 2}], "steps done"
    assert (summary["before"]["success"]["mean"], summary["after"]["success"]["mean"]) == (0.25, 0.75)
    assert (summary["before"]["step"], summary["after"]["step"]) == (0, 4)
    assert summary["wall_s"] >= 0
    assert folder.read_json("summary.json") == summary


def test_before_and_after_have_each_measure_with_its_interval_and_number(folder, play):
    folder.record_evaluation(0, score("before", [play("a", success=False), play("b"), play("c")]))
    folder.record_evaluation(4, score("after", [play("a"), play("b"), play("c")]))
    summary = write_summary(folder)
    for evaluation in (summary["before"], summary["after"]):
        for metric in ("success", "mean_turns", "tool_accuracy", "error_recovery"):
            assert evaluation[metric].keys() == {"mean", "low", "high", "n"}
    success = summary["before"]["success"]
    assert (success["mean"], success["n"]) == (pytest.approx(2 / 3), 3)
    assert success["low"] < success["mean"] < success["high"]


def test_a_run_that_has_not_finished_has_no_after(folder):
    assert write_summary(folder)["after"] is None


def test_a_run_without_a_step_has_no_figures_and_no_error(job):
    summary = write_summary(RunFolder.create(job))
    assert (summary["steps"], summary["rollout_tokens_per_s"], summary["parity_gap_max"]) == (0, None, None)


def test_the_versions_of_what_is_installed_are_in_it():
    found = versions()
    assert found["ray"].count(".") == 2
    assert "no-such-library" not in found
    assert set(found) - {"python"} <= set(summary_room.LIBRARIES)


def test_outside_of_git_there_is_no_commit(tmp_path, monkeypatch):
    (tmp_path / "types.py").touch()
    monkeypatch.setattr(summary_room, "SOURCE", tmp_path)
    assert git_commit() is None


def test_inside_of_git_the_commit_says_whether_files_differ(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = Path(tmp_path, "types.py")
    source.write_text("x = 1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(summary_room, "SOURCE", tmp_path)
    assert git_commit() == git("rev-parse", "HEAD")
    source.write_text("x = 2")
    assert git_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_a_copy_installed_inside_somebody_elses_repository_has_no_commit(tmp_path, monkeypatch):
    subprocess.run(["git", "init", str(tmp_path)], check=True, capture_output=True)
    (tmp_path / "types.py").touch()
    monkeypatch.setattr(summary_room, "SOURCE", tmp_path)
    assert git_commit() is None
