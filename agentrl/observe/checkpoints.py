"""Checkpoints that are whole or not there.

A checkpoint is a folder `step-00010` (10 = steps done), written under another name, synced to disk, closed with a
`DONE` marker that lists its files and their sizes, and renamed.  `latest` returns only what passes that list, so a
crash at any moment, or a copy that was cut off, costs the checkpoint being written and never a wrong resume.  What is
inside is the caller's matter.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.observe.files import sync_folder, write_whole

DONE = "DONE"


class Checkpoints:
    """The checkpoints of one run; `keep` of the newest are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    @contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """A folder to write the checkpoint of `step` steps done into; it counts once the block has ended without error.

        One with the same step is replaced.  Older ones than the newest `keep` are removed afterwards.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clean()
        part = self.folder / f".{_name(step)}.part"
        part.mkdir()
        yield part
        sizes = {}
        for path in sorted(p for p in part.rglob("*") if p.is_file()):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.relative_to(part).as_posix()] = path.stat().st_size
        for folder in (p for p in part.rglob("*") if p.is_dir()):
            sync_folder(folder)
        write_whole(part / DONE, json.dumps({"step": step, "files": sizes}, indent=1).encode())
        target = self.folder / _name(step)
        if target.exists():
            target.rename(self.folder / f".{_name(step)}.old")
        part.rename(target)
        sync_folder(self.folder)
        self._prune()

    def completed(self) -> list[Path]:
        """The checkpoints that are whole, oldest first."""
        return [path for path in sorted(self.folder.glob("step-*")) if _is_whole(path)]

    def latest(self) -> Path | None:
        """The newest whole checkpoint, None where there is none."""
        self._clean()
        return next(reversed(self.completed()), None)

    def drop_after(self, step: int) -> None:
        """Remove checkpoints of more than `step` steps done: the run goes on from there another time."""
        for path in self.folder.glob("step-*"):
            if step_of(path) > step:
                shutil.rmtree(path)

    def _clean(self) -> None:
        """Remove what a crash left half-written, and put back what it left half-replaced."""
        for left_over in self.folder.glob(".step-*"):
            target = self.folder / left_over.stem.removeprefix(".")
            if left_over.suffix == ".old" and not target.exists():
                left_over.rename(target)
            else:
                shutil.rmtree(left_over)

    def _prune(self) -> None:
        self._clean()
        for path in self.completed()[: -self.keep]:
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    """The number of steps that were done when a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def _name(step: int) -> str:
    return f"step-{step:05d}"


def _is_whole(path: Path) -> bool:
    try:
        done = json.loads((path / DONE).read_bytes())
        return all((path / name).stat().st_size == size for name, size in done["files"].items())
    except (OSError, ValueError, KeyError):
        return False
