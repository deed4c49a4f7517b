"""What is in a run's folder, and that nothing in it is there twice or overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pytest

from agentrl.config import JobError, WeightTriple, dump_job, load_job
from agentrl.observe.run_folder import RunFolder, RunFolderError
from agentrl.types import Promotion

NOON = datetime(2026, 11, 29, 12, 0, 0)


@dataclass
class FakeReport:
    name: str
    trajectories: list = field(default_factory=list)

    def to_dict(self):
        return {"name": self.name, "success": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}, "by_level": {}}


def facts(step: int, **changes):
    return {
        "step": step,
        "version": step + 1,
        "phase_s": {"plan": 0.1, "collect": 2.0},
        "teacher": {"cache_hits": 3},
        "learner": {"loss/kl": np.float32(0.5)},
        "weights": WeightTriple(kl=0.7, value=0.2, ppo=0.1),
        "parity_gap": 1e-6,
        "promoted": None,
        "events": [],
        **changes,
    }


def test_a_run_is_named_by_job_and_time_and_never_overwrites_another(job):
    folders = [RunFolder.create(job, NOON).path.name for _ in range(3)]
    assert folders == ["demo-20261129-120000", "demo-20261129-120000-2", "demo-20261129-120000-3"]


def test_the_resolved_job_is_in_it_with_the_name_of_the_key_and_not_the_key(job, monkeypatch):
    monkeypatch.setenv(job.teacher.api_key_env, "very-secret")
    folder = RunFolder.create(job, NOON)
    assert load_job(folder.path / "job.yaml") == job
    assert "very-secret" not in (folder.path / "job.yaml").read_text()
    assert RunFolder.open(folder.path).job == job


def test_a_folder_without_a_job_is_no_run(tmp_path):
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no job\.yaml"):
        RunFolder.open(tmp_path)


def test_a_run_that_has_not_finished_has_no_model_and_says_how_to_go_on(job):
    folder = RunFolder.create(job)
    with pytest.raises(RunFolderError, match=f"has not finished .* agentrl train --resume {folder.path}"):
        _ = folder.model
    (folder.path / "model").mkdir()
    assert folder.model == folder.path / "model"


def test_trajectories_that_are_not_there_are_named_with_those_that_are(job, play):
    folder = RunFolder.create(job)
    folder.write_trajectories("step-00000", [play()])
    with pytest.raises(RunFolderError, match="has no trajectories 'evaluation-before'; it has step-00000"):
        folder.read_trajectories("evaluation-before")


def test_a_step_is_one_line(job, play):
    folder = RunFolder.create(job)
    played = [play(level=1), play(level=2, success=False), play(level=2, failure="the environment broke")]
    folder.record_step(trajectories=played, **facts(0, promoted=Promotion(0, 3, "success 0.80")))
    (record,) = folder.steps()
    assert record.pop("time_s") > 0
    assert record == {
        "step": 0,
        "version": 1,
        "level": 2,
        "phase_s": {"plan": 0.1, "collect": 2.0},
        "rollout": {
            "episodes": 3,
            "failed": 1,
            "truncated": 0.0,
            "success": 0.5,
            "turns": 2.0,
            "reward": pytest.approx(0.6),
            "tokens": 15,
            "tokens_per_s": 7.5,
            "success_by_level": {"1": 1.0, "2": 0.0},
        },
        "teacher": {"cache_hits": 3},
        "learner": {"loss/kl": 0.5},
        "weights": {"kl": 0.7, "value": 0.2, "ppo": 0.1},
        "parity_gap": 1e-6,
        "events": ["level 3: success 0.80"],
        "promoted": 3,
        "evaluation": None,
    }
    assert len(folder.read_trajectories("step-00000")) == 3


def test_a_figure_that_is_not_finite_is_null_and_an_event(job, play):
    folder = RunFolder.create(job)
    folder.record_step(trajectories=[play()], **facts(0, learner={"loss/kl": float("nan"), "loss/ppo": np.inf}))
    (line,) = (folder.path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line, parse_constant=pytest.fail)
    assert record["learner"] == {"loss/kl": None, "loss/ppo": None}
    assert record["events"] == ["not finite: learner.loss/kl, learner.loss/ppo"]


def test_a_step_whose_episodes_all_broke_has_no_success_rather_than_none_of_it(job, play):
    folder = RunFolder.create(job)
    record = folder.record_step(trajectories=[play(failure="x")], **facts(0))
    assert (record["rollout"]["success"], record["rollout"]["failed"]) == (None, 1)


def test_an_evaluation_is_found_by_its_name(job, play):
    folder = RunFolder.create(job)
    folder.record_evaluation(0, FakeReport("before", [play(guided=False)]))
    folder.record_step(trajectories=[], **facts(0))
    assert folder.evaluations()["before"]["success"]["mean"] == 0.5
    assert folder.evaluations()["before"]["step"] == 0
    assert [record["step"] for record in folder.steps()] == [0]
    assert len(folder.read_trajectories("evaluation-before")) == 1


def test_a_line_that_a_crash_cut_off_is_left_out(job, play):
    folder = RunFolder.create(job)
    folder.record_step(trajectories=[play()], **facts(0))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "vers')
    assert [record["step"] for record in RunFolder.open(folder.path).metrics()] == [0]


def test_after_a_resume_no_step_and_no_evaluation_is_there_twice(job, play):
    folder = RunFolder.create(job)
    folder.record_evaluation(0, FakeReport("before", [play()]))
    for step in range(4):
        folder.record_step(trajectories=[play()], **facts(step))
        if step in (1, 3):
            folder.record_evaluation(step + 1, FakeReport(f"step-{step + 1:05d}", [play()]))
    folder.record_evaluation(4, FakeReport("after", [play()]))
    folder.write_trajectories("step-00004", [play()])  # a crash between an episode file and its line
    for step in (2, 4):
        with folder.checkpoints.writing(step) as path:
            (path / "x").write_text("x")

    resumed = RunFolder.open(folder.path)
    resumed.resume_at(2)
    assert [record["step"] for record in resumed.steps()] == [0, 1]
    assert list(resumed.evaluations()) == ["before", "step-00002"]
    assert resumed.trajectory_names() == ["evaluation-before", "evaluation-step-00002", "step-00000", "step-00001"]
    assert resumed.checkpoints.latest().name == "step-00002"
    resumed.record_step(trajectories=[play()], **facts(2))
    assert [record["step"] for record in resumed.steps()] == [0, 1, 2]


def test_a_run_that_died_after_its_last_evaluation_plays_it_again(job):
    folder = RunFolder.create(job)
    folder.record_step(trajectories=[], **facts(0))
    folder.record_evaluation(1, FakeReport("after"))
    folder.resume_at(1)
    assert folder.evaluations() == {}
    assert [record["step"] for record in folder.steps()] == [0]


def test_a_finished_run_is_not_resumed_and_keeps_its_files(job):
    folder = RunFolder.create(job)
    folder.write_json("summary.json", {"after": {"success": {}}})
    path = folder.path
    del folder
    with pytest.raises(RunFolderError, match="has finished, and there is nothing to resume"):
        RunFolder.reopen(path)
    assert (path / "summary.json").exists()


def test_a_run_that_was_interrupted_is_resumed_though_it_has_a_summary(job):
    folder = RunFolder.create(job)
    folder.write_json("summary.json", {"after": None})
    path = folder.path
    del folder
    assert RunFolder.reopen(path).job == job


def test_a_run_that_is_still_going_is_not_resumed_and_one_whose_process_was_killed_is(job, tmp_path):
    code = (
        "import sys, time; from agentrl.config import load_job; from agentrl.observe.run_folder import RunFolder; "
        "folder = RunFolder.create(load_job(sys.argv[1])); print(folder.path, flush=True); time.sleep(60)"
    )
    (tmp_path / "job.yaml").write_text(dump_job(job))
    going = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "job.yaml")], stdout=subprocess.PIPE, text=True
    )
    path = going.stdout.readline().strip()
    with pytest.raises(RunFolderError, match="another process is writing to"):
        RunFolder.reopen(path)
    assert RunFolder.open(path).steps() == [], "reading is free"
    going.kill()
    going.communicate()
    assert RunFolder.reopen(path).job == job


@pytest.mark.parametrize("runs_dir", ["a-file", "a-file/runs", "/proc/runs"])
def test_a_folder_that_cannot_be_made_is_a_mistake_in_the_job(job, tmp_path, monkeypatch, runs_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    with pytest.raises(JobError, match=f"runs_dir: cannot make a run's folder in '{runs_dir}'"):
        RunFolder.create(job.model_copy(update={"runs_dir": runs_dir}))


def test_the_clock_goes_on_where_the_interrupted_run_stopped(job, play):
    folder = RunFolder.create(job)
    folder.record_step(trajectories=[play()], **facts(0))
    path = folder.path / "metrics.jsonl"
    path.write_text(path.read_text().replace(f'"time_s": {folder.last_record["time_s"]}', '"time_s": 1000.0'))
    assert 1000.0 <= RunFolder.open(folder.path).time_s < 1060.0
