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
        (["train", "--resume", "no/such/run"], "cannot read the job file no/such/run/job.yaml"),
        (["evaluate", "nowhere.yaml"], "cannot read the job file nowhere.yaml"),
        (["demo-models", "x", "--only", "poker"], "there is no pair 'poker': choose from food_order"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_to_do(run, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_models_that_are_there_already_are_an_error_and_no_traceback(run, tmp_path: Path) -> None:
    (tmp_path / "food_order").mkdir()
    result = run("demo-models", str(tmp_path), "--only", "food_order")
    assert result.exit_code == 1
    assert "food_order is there already" in " ".join(result.stderr.split())
