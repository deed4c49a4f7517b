"""What Ctrl-C and failures leave of a run.  The parts are stand-ins here; tests/test_train.py has the real ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl import assembly
from agentrl import train as loop_room
from agentrl.assembly import assemble
from agentrl.config import Job, parse_job
from agentrl.interrupt import Interrupted, StopFlag
from agentrl.observe.progress import Progress
from agentrl.observe.run_folder import RunFolder
from agentrl.types import Failure


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return parse_job(
        {
            "name": "demo",
            "steps": 5,
            "runs_dir": str(tmp_path / "runs"),
            "environments": [{}],
            "student": {"path": "s"},
            "teacher": {"scorer": {"path": "t"}},
            "evaluation": {"every_steps": 2},
        }
    )


def test_ctrl_c_during_the_start_interrupts_it_as_it_does_later(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "read_catalogue", lambda job: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), ExitStack() as stack:
        assemble(job, RunFolder.create(job), Progress(job), stack)
    assert signal.getsignal(signal.SIGINT) == before


def test_signals_that_ray_took_are_taken_back_and_given_up_at_the_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.take()
        with pytest.raises(Interrupted), stop.may_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


Run = Callable[..., list[str]]


@pytest.fixture
def run(job: Job, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train from a step on stand-ins, which break where they are told to; what was done, in order."""

    def run(folder: RunFolder, *, step: int = 0, breaks: str = "", error: BaseException | None = None) -> list[str]:
        done: list[str] = []

        def do(name: str) -> Any:
            if name == breaks:
                assert error is not None
                raise error
            done.append(name)
            return SimpleNamespace(wall_s=7.0)

        def iterate(loop: Any) -> None:
            do(f"step {loop.step + 1}")
            loop.step += 1

        loop = SimpleNamespace(job=job, step=step, whole=True, stop=StopFlag(), progress=Progress(job))
        loop.learner = SimpleNamespace(save_model=lambda path: do("model"))
        stand_ins = {
            "resolve_models": lambda job: job,
            "assemble": lambda *parts: loop,
            "restore_checkpoint": lambda loop: None,
            "sync_weights": lambda loop: None,
            "evaluation": lambda loop, name: do(name),
            "iteration_or_restart": iterate,
            "save_checkpoint": lambda loop: do(f"checkpoint {loop.step}"),
            "compare": lambda before, after: SimpleNamespace(to_dict=dict),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(loop_room, name, stand_in)
        with suppress(Interrupted, Failure):
            loop_room.train(job, folder, loop.progress, resume=step > 0)
        return done

    return run


def test_an_evaluation_that_was_interrupted_is_played_when_the_run_goes_on(job: Job, run: Run) -> None:
    folder = RunFolder.create(job)
    done = run(folder, breaks="step-00002", error=Interrupted())
    assert done == ["before", "step 1", "step 2", "checkpoint 2"]
    done = run(folder, step=2)
    assert done == ["before", "step-00002", "step 3", "step 4", "step-00004", "step 5", "after", "model"]


@pytest.mark.parametrize("error", [Interrupted(), Failure("the teacher is gone")], ids=["interrupted", "failed"])
def test_a_run_that_ends_early_has_a_summary_and_a_report_of_what_there_is(
    job: Job, run: Run, error: BaseException
) -> None:
    folder = RunFolder.create(job)
    assert run(folder, breaks="step 2", error=error)[-1] == "checkpoint 1"
    summary = folder.read_json("summary.json")
    assert summary is not None
    assert summary["after"] is None
    assert "<html" in (folder.path / "report.html").read_text()
