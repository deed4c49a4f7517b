"""Checkpoint files cannot run code.  Correctness item 39."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # imports DeepSpeed


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    from agentrl.learner.deepspeed_engine import SafeCheckpointEngine

    torch.save({"weights": torch.zeros(2), "payload": Payload(tmp_path / "ran")}, tmp_path / "file.pt")
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        SafeCheckpointEngine().load(str(tmp_path / "file.pt"))
    assert not (tmp_path / "ran").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.learner.deepspeed_engine import SafeCheckpointEngine

    def interrupted(state: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SafeCheckpointEngine().save({}, str(tmp_path / "file.pt"))
    assert not (tmp_path / "file.pt").exists()
