"""A run is one folder, and everything that is known of the run is in it.

    job.yaml                     the resolved job, from which the run can be repeated; no secret is in it
    metrics.jsonl                one line a step, one an evaluation (see `metrics`)
    trajectories/*.jsonl.zst     every episode: step-00012, evaluation-before, … (see `records`)
    checkpoints/step-00010/      see `checkpoints`
    model/                       the trained student, once the run has finished
    summary.json, report.html, report.png

A new run never writes into an old one's folder.  One process writes, which a lock on the file `.lock` sees to and which
dies with the process; any number may read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from agentrl.config import Job, JobError, dump_job, load_job
from agentrl.observe.checkpoints import Checkpoints
from agentrl.observe.files import not_finite, plain, write_whole
from agentrl.observe.metrics import step_record
from agentrl.observe.records import Record, read_records, write_records
from agentrl.types import Failure, Trajectory

logger = logging.getLogger(__name__)

BEFORE, AFTER = "before", "after"


class RunFolderError(Failure):
    """A folder that holds no run, not what was asked of it, or one that another process writes to."""


class Report(Protocol):
    """What the evaluation room hands over."""

    @property
    def name(self) -> str: ...

    @property
    def trajectories(self) -> list[Trajectory]: ...

    def to_dict(self) -> dict[str, Any]: ...


class RunFolder:
    def __init__(self, path: Path) -> None:
        """Use `create`, `open` or `reopen`."""
        self.path = path
        self._lock = FileLock(path / ".lock", blocking=False)
        self.last_record: dict[str, Any] = {}
        self._ran_s = max((record.get("time_s") or 0.0 for record in self.metrics()), default=0.0)
        self._opened = time.monotonic()

    @classmethod
    def create(cls, job: Job, now: datetime | None = None) -> RunFolder:
        """A new folder `runs_dir/name-YYYYMMDD-HHMMSS`, with -2, -3, … behind it where that one exists.

        Raises JobError when no folder can be made there.
        """
        stem = f"{job.name}-{now or datetime.now():%Y%m%d-%H%M%S}"
        attempt = 1
        while True:
            path = Path(job.runs_dir) / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()
                break
            except OSError as error:
                if not isinstance(error, FileExistsError) or not path.is_dir():
                    raise JobError(
                        f"runs_dir: cannot make a run's folder in {job.runs_dir!r} ({error.strerror}); name a folder "
                        "that you may write to"
                    ) from error
                attempt += 1
        write_whole(path / "job.yaml", dump_job(job).encode())
        folder = cls(path)
        folder._lock_it()
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run's folder, to read.  Raises RunFolderError where there is none."""
        path = Path(path)
        if not path.is_dir():
            raise RunFolderError(f"there is no folder {str(path)!r} (looked from {Path.cwd()})")
        if not (path / "job.yaml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no job.yaml")
        return cls(path)

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """A run's folder, to go on with the run.  Raises RunFolderError for one that has finished or is still going."""
        folder = cls.open(path)
        folder._lock_it()
        if (folder.read_json("summary.json") or {}).get(AFTER):
            raise RunFolderError(
                f"{path} has finished, and there is nothing to resume; `agentrl evaluate {path}` plays what it trained"
            )
        return folder

    def _lock_it(self) -> None:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunFolderError(
                f"another process is writing to {self.path}: wait until the run has ended there, or stop it"
            ) from error

    @cached_property
    def job(self) -> Job:
        return load_job(self.path / "job.yaml")

    @property
    def model(self) -> Path:
        """The folder of the trained student.  Raises RunFolderError while the run has not finished."""
        folder = self.path / "model"
        if not folder.is_dir():
            raise RunFolderError(
                f"{self.path} has not finished and has no trained model: go on with agentrl train --resume {self.path}"
            )
        return folder

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints", self.job.keep_checkpoints)

    @property
    def time_s(self) -> float:
        """Seconds that the run has been running, the time between an interruption and a resume left out."""
        return self._ran_s + time.monotonic() - self._opened

    # ---- Writing -------------------------------------------------------------------------------------------------

    def record_step(self, *, trajectories: Sequence[Trajectory], **facts: Any) -> dict[str, Any]:
        """Append a step (`metrics.step_record` names the facts) and keep its trajectories; the record as written."""
        self.write_trajectories(f"step-{facts['step']:05d}", trajectories)
        self.last_record = self._append(step_record(time_s=self.time_s, trajectories=trajectories, **facts))
        return self.last_record

    def record_evaluation(self, step: int, report: Report) -> None:
        """Append an evaluation played after `step` steps and keep its trajectories (`evaluation-NAME`)."""
        self.write_trajectories(f"evaluation-{report.name}", report.trajectories)
        self._append({"step": step, "time_s": self.time_s, "evaluation": report.to_dict()})

    def write_trajectories(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        write_records(self._trajectory_file(name), trajectories)

    def write_json(self, name: str, value: Any) -> Path:
        """Write `value` as one JSON file (`summary.json`, say), whole or not at all."""
        return self.write_text(name, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write one file, whole or not at all; a lone surrogate, which is no UTF-8, becomes a question mark."""
        path = self.path / name
        write_whole(path, text.encode("utf-8", "replace"))
        return path

    def _append(self, record: dict[str, Any]) -> dict[str, Any]:
        strange = not_finite(record)
        if strange:
            logger.warning("not finite, written as null: %s", ", ".join(strange))
            record["events"] = [*record.get("events", ()), f"not finite: {', '.join(strange)}"]
        record = plain(record)
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
        return record

    # ---- Reading -------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl, steps and evaluations; a last line that a crash cut off is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        if rest:
            logger.warning("%s: the last line is cut off and left out", path)
        return [json.loads(line) for line in lines if line]

    def steps(self) -> list[dict[str, Any]]:
        """The records of the steps, in order."""
        return [record for record in self.metrics() if not record.get("evaluation")]

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluations by name, each with the `step` it was played after; of one name, the last."""
        found = {}
        for record in self.metrics():
            if record.get("evaluation"):
                found[record["evaluation"]["name"]] = {"step": record["step"], **record["evaluation"]}
        return found

    def trajectory_names(self) -> list[str]:
        return sorted(path.name.removesuffix(".jsonl.zst") for path in (self.path / "trajectories").glob("*.zst"))

    def read_trajectories(self, name: str) -> list[Trajectory]:
        """The trajectories of `step-00012`, `evaluation-before` and so on, without guidance."""
        return [record.trajectory for record in self.read_records(name)]

    def read_records(self, name: str) -> list[Record]:
        """The same with the guidance's summaries.  Raises RunFolderError for a name that is not there."""
        if not self._trajectory_file(name).exists():
            raise RunFolderError(
                f"{self.path} has no trajectories {name!r}; it has {', '.join(self.trajectory_names()) or 'none'}"
            )
        return list(read_records(self._trajectory_file(name)))

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    # ---- Resuming ------------------------------------------------------------------------------------------------

    def resume_at(self, step: int) -> None:
        """Forget what came after `step` steps done, so that nothing is there twice when the run goes on from there.

        The closing evaluation (`after`) is played again.
        """
        kept, trajectories = [], set()
        for record in self.metrics():
            evaluation = record.get("evaluation")
            if evaluation and record["step"] <= step and evaluation["name"] != AFTER:
                kept.append(record)
                trajectories.add(f"evaluation-{evaluation['name']}")
            elif not evaluation and record["step"] < step:
                kept.append(record)
                trajectories.add(f"step-{record['step']:05d}")
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
        write_whole(self.path / "metrics.jsonl", lines.encode())
        for name in set(self.trajectory_names()) - trajectories:
            self._trajectory_file(name).unlink()
        for name in ("summary.json", "report.html", "report.png"):
            (self.path / name).unlink(missing_ok=True)
        self.checkpoints.drop_after(step)
        self._ran_s = max((record.get("time_s") or 0.0 for record in kept), default=0.0)
        self._opened = time.monotonic()

    def _trajectory_file(self, name: str) -> Path:
        return self.path / "trajectories" / f"{name}.jsonl.zst"
