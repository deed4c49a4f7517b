"""The loop.  One iteration is: plan, collect, guide, learn, sync weights, record, promote.  Nothing else drives it.

    curriculum   an actor that says which tasks, how hard and with which loss weights          agentrl/curriculum
    rollouts     vLLM workers and environment actors that play episodes                        agentrl/rollout
    teacher      a service that gives logits and a value at every turn, over HTTP              agentrl/teacher
    learner      DeepSpeed ranks that take the combined step                                   agentrl/learner
    observer     the run folder: metrics, trajectories, checkpoints, report                    agentrl/observe

The components do not know the loop, and the loop knows no backend.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import ray

from agentrl import cluster
from agentrl.config import Job
from agentrl.curriculum.actor import start_curriculum
from agentrl.evaluation.suite import EvaluationReport, evaluate
from agentrl.learner.gang import LearnerGang
from agentrl.observe.progress import Progress
from agentrl.observe.run_folder import RunFolder
from agentrl.observe.summary import write_summary
from agentrl.parity import ParityProbe
from agentrl.rollout.pool import RolloutPool
from agentrl.teacher.client import TeacherClient
from agentrl.types import Outcome, Trajectory


class Interrupted(Exception):
    """Ctrl-C: what was done so far is in the run's last checkpoint."""


@dataclass(slots=True)
class Loop:
    """The parts of a running job and how far it has come."""

    job: Job
    folder: RunFolder
    curriculum: Any
    pool: RolloutPool
    teacher: TeacherClient
    learner: LearnerGang
    probe: ParityProbe
    progress: Progress
    stop: StopFlag
    step: int = 0
    phase_s: dict[str, float] = field(default_factory=dict)
    before: EvaluationReport | None = None
    after: EvaluationReport | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase of the step and show it."""
        self.progress.phase(name)
        started = time.monotonic()
        yield
        self.phase_s[name] = time.monotonic() - started


def train(job: Job, folder: RunFolder, progress: Progress, *, resume: bool = False) -> dict[str, Any]:
    """Run `job` into `folder` and return its summary.

    With `resume`, continue from the folder's last complete checkpoint.  Raises Interrupted after Ctrl-C, when a
    checkpoint has been written and every actor has been stopped.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        loop = _assemble(job, folder, progress, stop, stack)
        if resume:
            _restore(loop)
        sync_weights(loop)
        try:
            if loop.before is None:
                with stop.may_interrupt():
                    loop.before = run_evaluation(loop, "before")
            while loop.step < job.steps:
                iteration(loop)
                if loop.step % job.checkpoint_every == 0 or loop.step == job.steps:
                    save_checkpoint(loop)
                stop.check()
            with stop.may_interrupt():
                loop.after = run_evaluation(loop, "after")
        except Interrupted:
            progress.say("interrupted: saving a checkpoint")
            save_checkpoint(loop)
            raise
        loop.learner.save_model(folder.path / "model")
        return write_summary(folder, job, loop.before, loop.after)


def iteration(loop: Loop) -> None:
    """One step of the algorithm."""
    job, step = loop.job, loop.step
    loop.phase_s = {}
    with loop.stop.may_interrupt():
        with loop.phase("plan"):
            specs = ray.get(loop.curriculum.plan.remote(step, job.rollout.episodes_per_step), timeout=60)
            weights = ray.get(loop.curriculum.loss_weights.remote(step), timeout=60)
        with loop.phase("collect"):
            trajectories = loop.pool.collect(specs, on_progress=loop.progress.episodes)
        with loop.phase("guide"):
            guidance = loop.teacher.guide(
                trajectories, top_k=job.teacher.top_k, temperature=job.learner.loss.kl.temperature
            )
    with loop.phase("learn"):
        learned = loop.learner.step(trajectories, weights, progress=step / job.steps)
    with loop.phase("sync"):
        parity_gap = sync_weights(loop)
    ray.get(loop.curriculum.record.remote([outcome(t) for t in trajectories if t.failure is None]), timeout=60)
    promoted = ray.get(loop.curriculum.promote.remote(step), timeout=60)
    loop.step = step + 1
    loop.folder.record_step(
        step=step,
        version=loop.learner.version,
        phase_s=loop.phase_s,
        trajectories=trajectories,
        teacher=guidance,
        learner=learned,
        weights=weights,
        parity_gap=parity_gap,
        promoted=promoted,
        events=loop.pool.take_events(),
    )
    loop.progress.step(loop.folder.last_record)
    every = job.evaluation.every_steps
    if every and loop.step % every == 0 and loop.step < job.steps:
        with loop.stop.may_interrupt():
            run_evaluation(loop, f"step-{loop.step:05d}")


def sync_weights(loop: Loop) -> float:
    """Push the learner's weights to every engine and return the largest gap of their logprobs to the learner's own.

    Raises ParityError when the gap is above the tolerance, naming the first tensor that differs.
    """
    snapshot = loop.learner.export_weights()
    loop.pool.sync_weights(snapshot)
    return loop.probe.check(loop.learner, loop.pool, snapshot)


def run_evaluation(loop: Loop, name: str) -> EvaluationReport:
    loop.progress.phase(f"evaluate {name}")
    report = evaluate(
        lambda specs: loop.pool.collect(specs, on_progress=loop.progress.episodes),
        loop.job,
        name=name,
    )
    loop.folder.record_evaluation(loop.step, report)
    loop.progress.evaluation(report)
    return report


def outcome(trajectory: Trajectory) -> Outcome:
    spec = trajectory.spec
    return Outcome(spec.env, spec.level, trajectory.success, len(trajectory.turns), trajectory.oracle_turns)
