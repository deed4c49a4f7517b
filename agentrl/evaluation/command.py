"""`agentrl evaluate` and `agentrl rollout`: the student plays, nothing is trained, no teacher is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl import cluster
from agentrl.config import Job
from agentrl.curriculum.curriculum import Curriculum
from agentrl.evaluation.suite import EvaluationReport, evaluate
from agentrl.models import resolve_student
from agentrl.observe.progress import Progress
from agentrl.observe.records import write_records
from agentrl.rollout.catalogue import Catalogue, read_catalogue
from agentrl.rollout.pool import RolloutPool
from agentrl.types import Trajectory


def evaluate_job(job: Job, progress: Progress) -> EvaluationReport:
    """Play the held-out suite of `job` with its student."""
    with playing(job, progress) as (pool, catalogue):
        progress.phase("evaluate")
        report = play_suite(job, pool, catalogue, progress, job.name)
        progress.evaluation(report)
        return report


def play_suite(job: Job, pool: RolloutPool, catalogue: Catalogue, progress: Progress, name: str) -> EvaluationReport:
    """The held-out suite, played by the pool's students as they are now."""
    return evaluate(
        lambda specs: pool.collect(specs, on_progress=progress.episodes),
        job,
        catalogue.ladders,
        catalogue.errors,
        signature_of=catalogue.heldout_signature,
        name=name,
    )


def rollout_job(job: Job, progress: Progress, *, episodes: int, out: Path | None = None) -> list[Trajectory]:
    """Play `episodes` training tasks as the first step of the job's run would; write them to `out` if it is named."""
    with playing(job, progress) as (pool, catalogue):
        progress.phase("collect")
        specs = Curriculum(job, catalogue.ladders, catalogue.errors).plan(0, episodes)
        trajectories = pool.collect(specs, on_progress=progress.episodes)
    if out is not None:
        write_records(out, trajectories)
    return trajectories


@contextmanager
def playing(job: Job, progress: Progress) -> Iterator[tuple[RolloutPool, Catalogue]]:
    job = resolve_student(job)
    catalogue = read_catalogue(job)
    progress.phase("starting Ray")
    with cluster.connect(job):
        progress.phase("starting the rollout workers")
        pool = RolloutPool(job)
        try:
            yield pool, catalogue
        finally:
            pool.close()
