"""The parts of a training job, started in order and stopped in reverse.  `train` drives them; nothing here does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from transformers import AutoTokenizer

from agentrl import cluster
from agentrl.config import Job
from agentrl.curriculum.actor import CurriculumHandle
from agentrl.interrupt import StopFlag
from agentrl.learner.gang import LearnerGang
from agentrl.observe.progress import Progress
from agentrl.observe.run_folder import RunFolder
from agentrl.parity import ParityProbe
from agentrl.rollout.catalogue import Catalogue, read_catalogue
from agentrl.rollout.chat import make_renderer
from agentrl.rollout.pool import RolloutPool
from agentrl.teacher.client import TeacherClient, identity_of
from agentrl.teacher.server import service


@dataclass(slots=True)
class Loop:
    """The parts of a running job and how far it has come.

    step: steps done.  whole: the learner has taken these and no more, so that a checkpoint may be written.
    """

    job: Job
    folder: RunFolder
    progress: Progress
    stop: StopFlag
    catalogue: Catalogue
    curriculum: CurriculumHandle
    pool: RolloutPool
    teacher: TeacherClient
    learner: LearnerGang
    probe: ParityProbe
    step: int = 0
    whole: bool = True
    phase_s: dict[str, float] = field(default_factory=dict)
    signatures: set[str] = field(default_factory=set)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase of the step and show it."""
        self.progress.phase(name)
        started = time.monotonic()
        yield
        self.phase_s[name] = time.monotonic() - started


def assemble(job: Job, folder: RunFolder, progress: Progress, stack: ExitStack) -> Loop:
    """Start every part of the job, each to be stopped again when `stack` closes; Ctrl-C interrupts it."""
    stop = stack.enter_context(StopFlag())  # first: it is then there until the last part has stopped
    with stop.may_interrupt():
        return _start(job, folder, progress, stack, stop)


def _start(job: Job, folder: RunFolder, progress: Progress, stack: ExitStack, stop: StopFlag) -> Loop:
    catalogue = read_catalogue(job)
    tokenizer = AutoTokenizer.from_pretrained(job.student.path)
    progress.phase("starting Ray")
    own_ray = stack.enter_context(cluster.connect(job))
    stop.take()
    placement = stack.enter_context(cluster.reserve(job))
    progress.phase("starting the teacher")
    url = job.teacher.url
    if url is None:
        url = stack.enter_context(service(job.teacher, ends_with_ray=own_ray))
    teacher = stack.enter_context(TeacherClient(url, os.environ.get(job.teacher.api_key_env), job.teacher.timeout_s))
    loss = job.learner.loss
    gamma = loss.ppo.gamma if loss.value.teacher_weight > 0 else None
    teacher.handshake(identity_of(tokenizer, job.student.max_model_len, gamma))
    progress.phase("starting the learner")
    learner = LearnerGang(job, placement)
    stack.callback(learner.close)
    progress.phase("starting the rollout workers")
    pool = RolloutPool(job, placement=placement)
    stack.callback(pool.close)
    curriculum = CurriculumHandle(job, catalogue.ladders, catalogue.errors, placement=placement)
    stack.callback(curriculum.close)
    return Loop(
        job=job,
        folder=folder,
        progress=progress,
        stop=stop,
        catalogue=catalogue,
        curriculum=curriculum,
        pool=pool,
        teacher=teacher,
        learner=learner,
        probe=ParityProbe(job, catalogue, make_renderer(tokenizer, job.student.renderer)),
    )
