"""The doctor: finds what is wrong, says what to do, and does not mistake one for the other."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.config import Job, parse_job
from agentrl.doctor import Check, machine, render, run_doctor
from agentrl.doctor.check import attempt, ok
from agentrl.doctor.job import job_checks


def job(student: Path, teacher: Path, **changes: Any) -> Job:
    data: dict[str, Any] = {
        "name": "doctor",
        "environments": [{}],
        "student": {"path": str(student), "max_model_len": 1024},
        "teacher": {"scorer": {"type": "hf", "path": str(teacher)}},
        "rollout": {"engine": {"type": "transformers"}},
    }
    return parse_job(data | changes)


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_check_that_fails_gives_advice_and_one_that_does_not_gives_none() -> None:
    with pytest.raises(ValueError, match="gives advice"):
        Check("cores", "fail", "none")
    with pytest.raises(ValueError, match="gives advice"):
        Check("cores", "ok", "2", "buy some")


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> Check:
        raise RuntimeError("no such device")

    assert attempt("GPUs", broken, "plug it in") == Check("GPUs", "fail", "RuntimeError: no such device", "plug it in")
    assert attempt("GPUs", lambda: ok("GPUs", "1"), "plug it in").status == "ok"


def test_the_table_shows_status_finding_and_advice() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(render([Check("disk", "fail", "[0 GiB] free", "free some")]))
    assert [line.strip() for line in out.getvalue().splitlines() if line.strip()] == [
        "fail  disk  [0 GiB] free",
        "→ free some",
    ]


def test_a_lock_is_read_with_names_as_pip_compares_them() -> None:
    assert machine.read_lock("# why\nFarama_Notifications==0.0.6\ntorch==2.13.0+cpu  # first\n\n") == {
        "farama-notifications": "0.0.6",
        "torch": "2.13.0+cpu",
    }


def test_a_package_off_the_lock_is_named_with_both_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch-cpu.lock").write_text("")
    (tmp_path / "cpu.lock").write_text("numpy==0.0.1\n")
    monkeypatch.setattr(machine, "LOCKS", tmp_path)
    (check,) = machine._packages()
    assert check.status == "warn"
    assert check.detail.startswith("numpy ")
    assert check.detail.endswith("(lock: 0.0.1)")


def test_a_token_file_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    assert machine._ray().status == "fail"


def test_disabled_authentication_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert machine._ray().status == "warn"


def test_a_model_that_is_not_there_is_the_last_finding(tiny_model_dir: Path) -> None:
    checks = job_checks(job(tiny_model_dir, tiny_model_dir.parent / "nowhere"))
    assert checks[-1].name == "models"
    assert checks[-1].status == "fail"
    assert "teacher.scorer.path" in checks[-1].detail


def test_a_job_for_gpus_has_no_room_on_a_machine_without(tiny_model_dir: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    checks = job_checks(job(tiny_model_dir, Path("nowhere"), learner={"gpus_per_rank": 1}))
    assert found(checks, "room").status == "fail"


def test_a_teacher_with_another_tokenizer_does_not_fit_and_says_in_what(tiny_model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model_dir, other)
    data = json.loads((other / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    first, second = (word for word in vocabulary if len(word) == 1 and word in "ab")
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(data))
    checks = job_checks(job(tiny_model_dir, other))
    assert checks[-1].name == "handshake"
    assert checks[-1].status == "fail"
    assert checks[-1].detail.startswith("token→id map: ")


@pytest.mark.slow
def test_a_student_that_is_its_own_teacher_is_well(tiny_model_dir: Path) -> None:
    checks = job_checks(job(tiny_model_dir, tiny_model_dir))
    assert {check.name: check.status for check in checks} == {
        "room": "ok",
        "handshake": "ok",
        "self-teacher": "ok",
        "engine": "ok",
    }


@pytest.mark.slow
def test_this_machine_is_looked_at_without_a_job() -> None:
    names = [check.name for check in run_doctor()]
    assert names[0] == "Python"
    assert {"lock", "cores", "memory", "/dev/shm", "disk", "GPUs", "vLLM", "Ray"} <= set(names)
