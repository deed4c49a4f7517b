"""`agentrl teacher serve`: a job's teacher by itself, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl import cluster
from agentrl.config import Job
from agentrl.models import resolve_teacher
from agentrl.teacher.server import service


@contextmanager
def serving(job: Job) -> Iterator[str]:
    """The URL of the job's teacher, which runs on the job's Ray while the block does."""
    job = resolve_teacher(job)
    with cluster.connect(job) as own_ray, service(job.teacher, ends_with_ray=own_ray) as url:
        yield url
