"""The command line: help that shows how, a dry run that starts nothing, and errors without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import load_job
from agentrl.interrupt import Interrupted
from agentrl.models import locate_models
from agentrl.observe.run_folder import RunFolder
from agentrl.types import Failure

REPO = Path(__file__).resolve().parent.parent
QUICKSTART = str(REPO / "deploy/jobs/quickstart.yaml")
COMMANDS = (["train"], ["evaluate"], ["rollout"], ["teacher", "serve"], ["demo-models"], ["doctor"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"agentrl {' '.join(command)} " in result.output.split("Examples:")[1]


def test_help_answers_without_loading_torch_ray_or_vllm() -> None:
    code = "import sys, agentrl.cli; sys.exit(bool({'torch', 'ray', 'vllm', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO, check=False).returncode == 0


def test_a_dry_run_prints_the_resolved_job_and_its_places(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("train", QUICKSTART, "seed=3", "--dry-run")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == load_job(QUICKSTART, ["seed=3"]).model_dump(mode="json")
    assert "rollout        2 × 1 CPU" in result.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was written"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", QUICKSTART, "stepz=3"], "did you mean 'steps'?"),
        (["train"], "name a job file"),
        (["train", QUICKSTART, "--resume", "runs/x"], "leave JOB and KEY=VALUE out"),
        (["train", "--resume", "no/such/run"], "there is no folder 'no/such/run'"),
        (["train", "--resume", "tests"], "tests is not a run folder: it has no job.yaml"),
        (["evaluate", "tests"], "tests is not a run folder: it has no job.yaml"),
        (["rollout", "tests"], "tests is not a run folder: it has no job.yaml"),
        (["evaluate", QUICKSTART, "--json", "no/such/folder/x.json"], "there is no folder 'no/such/folder'"),
        (["rollout", QUICKSTART, "--out", "no/such/folder/x.zst"], "there is no folder 'no/such/folder'"),
        (["train", QUICKSTART, "evaluation.levels=[9]", "--dry-run"], "evaluation.levels has 9"),
        (["train", QUICKSTART, "environments.0.id=agentrl/Foo-v0", "--dry-run"], "cannot make 'agentrl/Foo-v0'"),
        (["evaluate", "nowhere.yaml"], "cannot read the job file nowhere.yaml"),
        (["demo-models", "x", "--only", "poker"], "there is no pair 'poker': choose from food_order"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_to_do(run, monkeypatch, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(REPO)
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "mistake",
    [
        "environments.0.id=agentrl/Foo-v0",
        "environments.0.modules=[nonsense]",
        "student.path=gone",
        "evaluation.levels=[9]",
    ],
)
def test_a_job_that_cannot_start_leaves_no_run_folder(run, monkeypatch, tmp_path: Path, mistake: str) -> None:
    monkeypatch.chdir(REPO)
    result = run("train", QUICKSTART, f"runs_dir={tmp_path / 'runs'}", mistake)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_warns_of_a_model_that_may_lie_elsewhere(run, monkeypatch) -> None:
    monkeypatch.chdir(REPO)
    result = run("train", "deploy/jobs/qwen_a100.yaml", "--dry-run")
    assert result.exit_code == 0
    assert "warning: a run from here would fail: student.path: there is no folder" in result.stderr


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch) -> Path:
    """The folder of a run that has a job and nothing else."""
    monkeypatch.chdir(REPO)
    job = locate_models(load_job(QUICKSTART, [f"runs_dir={tmp_path / 'runs'}"]))
    return RunFolder.create(job).path


@pytest.mark.parametrize("command", ["evaluate", "rollout"])
def test_the_model_of_an_unfinished_run_is_not_there_yet(run, unfinished: Path, command: str) -> None:
    result = run(command, str(unfinished))
    assert result.exit_code == 2
    assert f"has not finished and has no trained model: go on with agentrl train --resume {unfinished}" in result.stderr


def test_the_job_of_a_run_names_its_models_in_full(unfinished: Path) -> None:
    assert RunFolder.open(unfinished).job.student.path == str(REPO / "models/food_order/student")


@pytest.mark.parametrize(
    ("ends_with", "code", "said", "hint"),
    [
        (Interrupted(), 130, "stopped; continue with", True),
        (Failure("the teacher is gone"), 1, "error: the teacher is gone", True),
        (Failure("the teacher is gone"), 1, "error: the teacher is gone", False),
    ],
    ids=["interrupted", "failed", "failed before a checkpoint"],
)
def test_a_run_that_ends_early_says_how_to_go_on(
    run, unfinished: Path, monkeypatch, ends_with: BaseException, code: int, said: str, hint: bool
) -> None:
    def stop(job, folder, progress, *, resume):
        if hint:
            with folder.checkpoints.writing(1) as path:
                (path / "state.json").touch()
        raise ends_with

    monkeypatch.setattr("agentrl.train.train", stop)
    result = run("train", "--resume", str(unfinished))
    assert result.exit_code == code
    assert said in result.stderr
    assert (f"continue with: agentrl train --resume {unfinished}" in result.stderr) == hint


def test_models_that_are_there_already_are_an_error_and_no_traceback(run, tmp_path: Path) -> None:
    (tmp_path / "food_order").mkdir()
    result = run("demo-models", str(tmp_path), "--only", "food_order")
    assert result.exit_code == 1
    assert "food_order is there already" in " ".join(result.stderr.split())
