"""What this machine can do and what it can't, and whether a job's models fit each other.

`agentrl doctor [JOB]` calls `run_doctor` and prints `render` of it.  Nothing here changes a file, except the cache of a
`gguf:` model; no Ray is started.
"""

from __future__ import annotations

from agentrl.config import Job
from agentrl.doctor.check import Check, render

__all__ = ["Check", "render", "run_doctor"]


def run_doctor(job: Job | None = None) -> list[Check]:
    """Every check, in the order in which a reader would want to mend what fails.

    Without a job: this machine (seconds; vLLM is started up to its platform, in a process of its own).  With one: also
    the job's room, its models, the teacher's handshake, and the log-probabilities of scorer and engine (a minute).
    """
    from agentrl.doctor.machine import machine_checks

    checks = machine_checks(job)
    if job is not None:
        from agentrl.doctor.job import job_checks

        checks += job_checks(job)
    return checks
