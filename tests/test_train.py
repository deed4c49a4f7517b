"""The whole job on the real parts: vLLM, Ray Serve over HTTP, DeepSpeed; killed, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentrl.config import load_job
from agentrl.observe.progress import Progress
from agentrl.observe.run_folder import RunFolder

REPO = Path(__file__).resolve().parent.parent
JOB = REPO / "deploy" / "jobs" / "quickstart.yaml"
SMALL = (
    "checkpoint_every=1",
    "keep_checkpoints=5",
    "rollout.episodes_per_step=6",
    "learner.minibatches=2",
    "evaluation.tasks=4",
    "evaluation.levels=[3]",
)
#: the same episodes every time: one sequence at a time, in one process
REPEATABLE = ("rollout.engine.type=transformers", "rollout.workers=1", "rollout.max_turns=6", "evaluation.max_turns=6")
TIMEOUT_S = 900

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(2400)]


def load(runs: Path, *overrides: str):
    student, teacher = REPO / "models/food_order/student", REPO / "models/food_order/teacher"
    paths = (f"student.path={student}", f"teacher.scorer.path={teacher}", f"runs_dir={runs}")
    return load_job(JOB, [*SMALL, *paths, *overrides])


class KillsAWorker(Progress):
    """SIGKILLs one rollout worker in the middle of the first step's episodes."""

    killed: int | None = None

    def episodes(self, done: int, total: int) -> None:
        super().episodes(done, total)
        if self._phase == "collect" and done >= 1 and self.killed is None:
            workers = [p for p in psutil.Process().children(recursive=True) if "RolloutWorker" in " ".join(p.cmdline())]
            self.killed = workers[0].pid
            workers[0].kill()


def test_a_run_learns_records_and_survives_the_death_of_a_rollout_worker(tmp_path, monkeypatch) -> None:
    from agentrl.train import train

    monkeypatch.setenv("CI", "true")
    job = load(tmp_path, "steps=2")
    folder = RunFolder.create(job)
    progress = KillsAWorker(job)
    with progress:
        comparison = train(job, folder, progress)
    assert progress.killed is not None
    steps = folder.steps()
    assert [step["version"] for step in steps] == [1, 2]
    assert [step["rollout"]["episodes"] for step in steps] == [6, 6]
    assert steps[0]["rollout"]["failed"] == 0, "the lost episodes were played again"
    assert any("rollout worker" in event for step in steps for event in step["events"])
    assert all(step["parity_gap"] <= 1e-4 for step in steps)
    assert all(step["learner"][f"grad_norm/{term}"] >= 0 for step in steps for term in ("kl", "value", "ppo", "total"))
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["steps"] == summary["policy_version"] == 2
    assert summary["before"]["success"]["n"] == summary["after"]["success"]["n"] == 4
    assert summary["parity_gap_max"] <= 1e-4
    assert {"wall_s", "tokens_generated", "rollout_tokens_per_s", "levels", "git_commit", "versions"} <= summary.keys()
    assert (folder.path / "model" / "model.safetensors").stat().st_size > 1_000_000
    assert "<html" in (folder.path / "report.html").read_text()
    assert comparison.names == ("before", "after")


def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path) -> None:
    whole = run_cli(tmp_path / "whole", "train", JOB, *settings(tmp_path / "whole"))
    assert whole.wait(TIMEOUT_S) == 0, output(tmp_path / "whole")
    parts = tmp_path / "parts"
    interrupted = run_cli(parts, "train", JOB, *settings(parts))
    wait_for_a_step(parts, interrupted)
    started = psutil.Process(interrupted.pid).children(recursive=True)
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(TIMEOUT_S) == 130, output(parts)
    assert "--resume" in output(parts)
    _, left = psutil.wait_procs(started, timeout=30)
    assert not left, "Ctrl-C leaves nothing behind"
    resumed = run_cli(parts, "train", "--resume", only_run(parts))
    assert resumed.wait(TIMEOUT_S) == 0, output(parts)
    models = [only_run(folder) / "model" / "model.safetensors" for folder in (tmp_path / "whole", parts)]
    assert models[0].read_bytes() == models[1].read_bytes()
    steps = [[r["rollout"]["tokens"] for r in RunFolder.open(only_run(f)).steps()] for f in (tmp_path / "whole", parts)]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 3


def settings(runs: Path) -> list[str]:
    student, teacher = REPO / "models/food_order/student", REPO / "models/food_order/teacher"
    paths = (f"student.path={student}", f"teacher.scorer.path={teacher}", f"runs_dir={runs}")
    return [*SMALL, *REPEATABLE, *paths, "steps=3"]


def run_cli(folder: Path, *arguments: object) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    with (folder / "output.txt").open("a") as log:
        command = [sys.executable, "-c", "from agentrl.cli import main; main()", *map(str, arguments)]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "CI": "true"})


def output(folder: Path) -> str:
    return (folder / "output.txt").read_text()[-4000:]


def only_run(folder: Path) -> Path:
    (run,) = folder.glob("quickstart-*")
    return run


def wait_for_a_step(folder: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, output(folder)
        if any(RunFolder.open(run).steps() for run in folder.glob("quickstart-*") if (run / "job.yaml").exists()):
            return
        time.sleep(0.2)
    pytest.fail(f"waited {TIMEOUT_S} s for a first step:\n{output(folder)}")
