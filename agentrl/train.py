"""The loop.  One iteration is: plan, collect, guide, learn, sync weights, record, promote.  Nothing else drives it.

    curriculum   an actor that says which tasks, how hard and with which loss weights          agentrl/curriculum
    pool         vLLM workers and environment actors that play episodes                        agentrl/rollout
    teacher      a service that gives logits and a value at every turn, over HTTP              agentrl/teacher
    learner      DeepSpeed ranks that take the combined step                                   agentrl/learner
    folder       the run folder: metrics, trajectories, checkpoints, report                    agentrl/observe

The components do not know the loop, and the loop knows no backend.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict

from agentrl.assembly import Loop, assemble
from agentrl.config import Job
from agentrl.curriculum.curriculum import Curriculum
from agentrl.evaluation.command import play_suite
from agentrl.evaluation.leaks import check_leaks
from agentrl.evaluation.suite import EvaluationReport
from agentrl.evaluation.table import Comparison, compare
from agentrl.interrupt import Interrupted
from agentrl.learner.gang import GangLost
from agentrl.models import resolve_models
from agentrl.observe.checkpoints import step_of
from agentrl.observe.progress import Progress
from agentrl.observe.report import write_report
from agentrl.observe.run_folder import AFTER, BEFORE, RunFolder
from agentrl.observe.summary import write_summary
from agentrl.teacher.client import GuideStats
from agentrl.types import Failure, Outcome, Trajectory

REQUEST_TOKENS = 32_768
"""tokens of one request to the teacher, where the job allows as many"""
MAX_RESTARTS = 3
"""restarts of the learner before one step is done"""


class ResumeError(Failure):
    """The run cannot go on as it began."""


def train(job: Job, folder: RunFolder, progress: Progress, *, resume: bool = False) -> Comparison:
    """Run `job` into `folder`; return the comparison of before and after.

    With `resume`, go on from the folder's last whole checkpoint.  Raises Interrupted after Ctrl-C, and the Failure that
    ended the run (a teacher that is gone, no worker left), both when checkpoint, summary and report of what there is
    have been written; every actor is stopped on the way out, whatever happened.
    """
    with ExitStack() as stack:
        loop = assemble(resolve_models(job), folder, progress, stack)
        if resume:
            restore_checkpoint(loop)
        sync_weights(loop)
        try:
            before = evaluation(loop, BEFORE)
            progress.closing_s = before.wall_s
            while loop.step < job.steps:
                evaluation_if_due(loop)
                iteration_or_restart(loop)
                loop.stop.check()
            after = evaluation(loop, AFTER)
        except (Interrupted, Failure):
            if loop.whole:
                progress.say("stopped: saving a checkpoint")
                save_checkpoint(loop)
            write_summary(folder)
            write_report(folder)
            raise
        progress.phase("report")
        loop.learner.save_model(folder.path / "model")
        comparison = compare(before, after)
        write_summary(folder, comparison.to_dict())
        write_report(folder)
        return comparison


def iteration(loop: Loop) -> None:
    """One step of the algorithm."""
    job, step = loop.job, loop.step
    loop.phase_s = {}
    with loop.stop.may_interrupt():
        with loop.phase("plan"):
            specs = loop.curriculum.plan(step, job.rollout.episodes_per_step)
            weights = loop.curriculum.loss_weights(step)
        with loop.phase("collect"):
            trajectories = loop.pool.collect(specs, on_progress=loop.progress.episodes)
        with loop.phase("guide"):
            guidance = guide(loop, trajectories, job.teacher.top_k, job.learner.loss.kl.temperature)
    loop.whole = False
    with loop.phase("learn"):
        learned = loop.learner.step(trajectories, weights, progress=step / job.steps)
    with loop.phase("sync"):
        sync_weights(loop)
    loop.curriculum.record([outcome(t) for t in trajectories if t.failure is None])
    loop.signatures |= {t.signature for t in trajectories if t.failure is None}
    promoted = loop.curriculum.promote(step)
    loop.step, loop.whole = step + 1, True
    record = loop.folder.record_step(
        step=step,
        version=loop.learner.version,
        phase_s=loop.phase_s,
        trajectories=trajectories,
        teacher=asdict(guidance),
        learner=learned,
        weights=weights.model_dump(),
        parity_gap=loop.probe.take_gap(),
        promoted=promoted,
        events=loop.pool.take_events(),
    )
    loop.progress.step(record)
    if loop.step % job.checkpoint_every == 0 or loop.step == job.steps:
        save_checkpoint(loop)


def iteration_or_restart(loop: Loop) -> None:
    """One step; when a rank of the learner dies, all start again and the run goes back to its last checkpoint."""
    for restarts in range(MAX_RESTARTS + 1):
        try:
            if restarts:
                loop.learner.restart()
                restore_checkpoint(loop)
                sync_weights(loop)
            iteration(loop)
            return
        except GangLost as error:
            loop.whole = False
            if restarts == MAX_RESTARTS:
                raise
            loop.progress.say(f"{error}; restarting the learner from the last checkpoint")


def guide(loop: Loop, trajectories: list[Trajectory], top_k: int, temperature: float) -> GuideStats:
    """Ask the teacher about every turn of the student, in requests as large as the job allows."""
    tokens = min(REQUEST_TOKENS, loop.job.teacher.max_request_tokens)
    return loop.teacher.guide(trajectories, top_k, temperature, request_tokens=tokens)


def sync_weights(loop: Loop) -> None:
    """Push the learner's weights to every engine, and check that their logprobs are the learner's own.

    Raises ParityError when the gap is above the tolerance, naming the first tensor that differs.
    """
    snapshot = loop.learner.export_weights()
    loop.pool.sync_weights(snapshot, loop.probe.against(loop.learner, loop.pool, snapshot))


def evaluation(loop: Loop, name: str) -> EvaluationReport:
    """Play the held-out suite, or read what this run found when it played it before it was interrupted."""
    played = loop.folder.evaluations().get(name)
    if played is not None:
        return EvaluationReport.from_dict(played)
    loop.progress.phase(f"evaluate {name}")
    with loop.stop.may_interrupt():
        report = play_suite(loop.job, loop.pool, loop.catalogue, loop.progress, name)
        loop.progress.phase(f"guide {name}")  # for the report: where would the teacher have spoken otherwise?
        guide(loop, report.trajectories, top_k=1, temperature=1.0)
    check_leaks(loop.signatures, report.signatures)
    loop.folder.record_evaluation(loop.step, report)
    loop.progress.evaluation(report)
    return report


def evaluation_if_due(loop: Loop) -> None:
    """One of those between the first and the last; a resumed run plays the one during which it was interrupted."""
    every = loop.job.evaluation.every_steps
    if every and loop.step and loop.step % every == 0:
        evaluation(loop, f"step-{loop.step:05d}")


def save_checkpoint(loop: Loop) -> None:
    """All that a resumed run needs to equal an uninterrupted one; the plan follows from step and curriculum."""
    with loop.folder.checkpoints.writing(loop.step) as path:
        loop.learner.save(path / "learner")
        state = {
            "step": loop.step,
            "policy_version": loop.learner.version,
            "curriculum": loop.curriculum.state_dict(),
            "teacher": loop.teacher.model().model_dump(mode="json"),
            "signatures": sorted(loop.signatures),
        }
        (path / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def restore_checkpoint(loop: Loop) -> None:
    """Back to the last whole checkpoint, or to the start of the run where there is none yet.

    Raises ResumeError when the teacher is not the one that the run began with.
    """
    path, catalogue = loop.folder.checkpoints.latest(), loop.catalogue
    loop.whole = True
    if path is None:
        loop.step = 0
        loop.signatures = set()
        loop.curriculum.load_state_dict(Curriculum(loop.job, catalogue.ladders, catalogue.errors).state_dict())
        loop.folder.resume_at(0)
        return
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state["teacher"] != loop.teacher.model().model_dump(mode="json"):
        raise ResumeError(
            f"{loop.teacher.url} is not the teacher that this run began with: serve that one again, or start a new run"
        )
    loop.learner.load(path / "learner")
    loop.curriculum.load_state_dict(state["curriculum"])
    loop.signatures = set(state["signatures"])
    loop.step = step_of(path)
    loop.folder.resume_at(loop.step)
    loop.progress.say(f"resumed after step {loop.step}")


def outcome(trajectory: Trajectory) -> Outcome:
    """What the curriculum is told of an episode.  A turn that was forced upon the student is not counted."""
    spec = trajectory.spec
    turns = sum(turn.author == "student" for turn in trajectory.turns)
    return Outcome(spec.env, spec.level, trajectory.success, turns, trajectory.oracle_turns)
