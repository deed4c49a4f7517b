"""Does on-policy distillation under a curriculum pay?  The quickstart's job over seeds, beside controls of its size.

    python -m benchmarks.learning                 all methods, five seeds; resumes where it was stopped
    python -m benchmarks.learning --seeds 0 1 --methods opd sft

    opd            the job as it is: the student's own turns, the teacher's guidance, rising levels
    no-curriculum  the same, on the hardest of its levels from the first step on
    sft            as many turns of the teacher's own transcripts as `opd` of the same seed took, sampled at the job's
                   temperature on the levels that it may reach; cross-entropy, the same optimizer, schedule and steps
    sft-errors     the same, on transcripts in which the teacher had to find its way back from as many injected errors
                   as the job forces upon the student
    start          nothing is trained

Every method is evaluated on the same 100 held-out tasks a level and measure, clean and after an injected, stated error:
on the two levels that the job trains on and on the next harder one, which nobody trained on.  A row's interval is
Student's t over the seeds.  Each run's measures are kept in `benchmarks/results/learning/` with the job and the commit
that gave them, the table in `benchmarks/results/learning.json`.  Runs of different jobs are never put into one table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from agentrl.assembly import Loop, assemble
from agentrl.config import Job, WeightTriple, load_job
from agentrl.curriculum.curriculum import Curriculum
from agentrl.evaluation.command import playing
from agentrl.evaluation.suite import EvaluationReport
from agentrl.models import resolve_models
from agentrl.observe.progress import Progress
from agentrl.observe.run_folder import AFTER, RunFolder
from agentrl.train import evaluation, sync_weights, train
from agentrl.types import Trajectory, TurnGuidance
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
SUITE = ("evaluation.tasks=100", "evaluation.levels=[3, 4, 5]")
METHODS = ("opd", "no-curriculum", "sft", "sft-errors")
MEASURES = ("success", "error_recovery", "mean_turns", "tool_accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="deploy/jobs/quickstart.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of the job")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    for seed in arguments.seeds:
        for method in arguments.methods:
            overrides = [*SUITE, f"seed={seed}", f"name=learning-{method}-{seed}", *arguments.overrides]
            job = load_job(arguments.job, overrides)
            if read(method, seed, job) is not None:
                console.print(f"{path_of(method, seed)} is there already")
                continue
            ran_on, started = machine(), time.monotonic()
            opd = read("opd", seed, job)
            known = [found for other in arguments.seeds if (found := read("opd", other, job)) is not None]
            measures = run(method, job, opd and opd["turns"], known[0]["before"] if known else None)
            measures |= {"wall_s": time.monotonic() - started, "machine": ran_on, "job": _recipe(job)}
            path_of(method, seed).parent.mkdir(parents=True, exist_ok=True)
            path_of(method, seed).write_text(json.dumps(measures, indent=1) + "\n")
    table = summarise(arguments.methods, arguments.seeds)
    (RESULTS / "learning.json").write_text(json.dumps({"rows": table}, indent=1) + "\n")
    console.print(to_rich(table))


def path_of(method: str, seed: int) -> Path:
    return RESULTS / "learning" / f"{method}-seed{seed}.json"


def read(method: str, seed: int, job: Job) -> dict[str, Any] | None:
    """What a run gave, if it has been made.  Raises SystemExit where it was made by another job than this."""
    path = path_of(method, seed)
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["job"] != _recipe(job):
        raise SystemExit(f"{path} was made by another job than {job.name}'s: move it away and run again")
    return found


def _recipe(job: Job) -> dict[str, Any]:
    """The job without what tells one run of it from another."""
    return job.model_dump(mode="json", exclude={"name", "seed", "runs_dir"})


def run(method: str, job: Job, turns: int | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """The reports of before and after one run, and the student's (for sft: the teacher's) turns that it trained on.

    `turns` is how many sft takes; None: those of as many episodes as the job plays.  `before`, where it is known, is
    not played again.
    """
    if method == "no-curriculum":
        job = _on_one_level(job, job.curriculum.max_level or job.curriculum.start_level)
    folder = RunFolder.create(job)
    if before is not None:
        folder.record_evaluation(0, EvaluationReport.from_dict(before))
    with Progress(job) as progress:
        if method.startswith("sft"):
            imitate(job, folder, progress, turns, errors=method == "sft-errors")
        else:
            train(job, folder, progress)
    taken = sum((record["rollout"]["turns"] or 0) * record["rollout"]["episodes"] for record in folder.steps())
    return {"before": folder.evaluations().get("before"), "after": folder.evaluations()[AFTER], "turns": round(taken)}


def _on_one_level(job: Job, level: int, **changes: Any) -> Job:
    kept = job.curriculum.model_dump(include={"rehearsal", "injected_errors"})
    curriculum = {**kept, "type": "fixed", "start_level": level, **changes}
    return Job.model_validate({**job.model_dump(), "curriculum": curriculum})


def imitate(job: Job, folder: RunFolder, progress: Progress, turns: int | None, errors: bool) -> EvaluationReport:
    """SFT on the teacher's transcripts, by the same learner: cross-entropy is the forward KL to a one-hot teacher."""
    transcripts = _teacher_transcripts(job, progress, turns, errors)
    steps = np.array_split(np.arange(len(transcripts)), job.steps)
    with ExitStack() as stack:
        loop: Loop = assemble(resolve_models(job), folder, progress, stack)
        for step in range(job.steps):
            episodes = [transcripts[i] for i in steps[step]]
            learned = loop.learner.step(episodes, WeightTriple(kl=1.0, value=0.0, ppo=0.0), step / job.steps)
            record = folder.record_step(
                step=step,
                version=loop.learner.version,
                phase_s={},
                trajectories=episodes,
                teacher=None,
                learner=learned,
                weights=None,
                parity_gap=None,
                promoted=None,
                events=[],
            )
            progress.step(record)
            loop.step = step + 1
            loop.stop.check()
        sync_weights(loop)
        return evaluation(loop, AFTER)


def _teacher_transcripts(job: Job, progress: Progress, turns: int | None, errors: bool) -> list[Trajectory]:
    """Episodes that the teacher plays, as many from each level that the on-policy run may reach; one-hot guidance.

    Played in rounds until there are `turns` turns, or else as many episodes as the job plays.  With `errors`, the
    job's share of them has an injected error, which is not imitated.
    """
    changes = {"rehearsal": 0.0} if errors else {"rehearsal": 0.0, "injected_errors": 0.0}
    levels = range(job.curriculum.start_level, (job.curriculum.max_level or job.curriculum.start_level) + 1)
    student = {**job.student.model_dump(), "path": job.teacher.scorer.path}
    played: list[Trajectory] = []
    with playing(Job.model_validate({**job.model_dump(), "student": student}), progress) as (pool, catalogue):
        progress.phase("the teacher plays")
        for round_ in range(10 * job.steps):
            enough = len(played) >= job.steps * job.rollout.episodes_per_step
            if enough if turns is None else sum(len(t.turns) for t in played) >= turns:
                break
            fixed = _on_one_level(job, levels[round_ % len(levels)], **changes)
            curriculum = Curriculum(fixed, catalogue.ladders, catalogue.errors)
            specs = curriculum.plan(round_, 4 * job.rollout.episodes_per_step)
            played += [t for t in pool.collect(specs) if t.failure is None]
            progress.episodes(len(played), job.steps * job.rollout.episodes_per_step)
    np.random.default_rng(job.seed).shuffle(played)  # type: ignore[arg-type]
    for trajectory in played:
        trajectory.guidance = [one_hot(trajectory, k) for k in range(len(trajectory.turns))]
    return played


def one_hot(trajectory: Trajectory, index: int) -> TurnGuidance:
    """A teacher that is certain of what was written."""
    turn = trajectory.turns[index]
    ids_n = trajectory.samples[turn.sample].token_ids_T[turn.start : turn.end]
    n = len(ids_n)
    return TurnGuidance(
        turn=index,
        support_ids_nk=ids_n.reshape(n, 1).astype(np.int32),
        support_logprobs_nk=np.zeros((n, 1), np.float32),
        tail_logprobs_n=np.full(n, -np.inf, np.float32),
        value=None,
    )


def summarise(methods: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """One row a method and level: each measure's mean over the seeds, with its 95 % interval."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for method in methods:
        for seed in seeds:
            path = path_of(method, seed)
            if not path.exists():
                continue
            data = json.loads(path.read_text())
            parts = [(method, data["after"])]
            if method == "opd" and seed == seeds[0]:
                parts.append(("start", data["before"]))
            for name, report in parts:
                for level, measures in report["by_level"].items():
                    for measure in MEASURES:
                        found[name, level][measure].append(measures[measure]["mean"])
    rows = []
    for (method, level), values in sorted(found.items(), key=lambda item: (item[0][1], item[0][0] != "start")):
        rows.append({"method": method, "level": int(level), **{m: interval(values[m]) for m in MEASURES}})
    return rows


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and Student's t interval over seeds; no interval for one."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return {"mean": mean, "low": None, "high": None, "n": n}
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}


def to_rich(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        caption="mean over seeds [95 % interval, Student's t]; error recovery = success after an injected, stated error"
    )
    for title in ("level", "method", "seeds", *MEASURES):
        table.add_column(title.replace("_", " "))
    for row in rows:
        cells = [_cell(row[m], 1.0 if m == "mean_turns" else 100.0) for m in MEASURES]
        table.add_row(str(row["level"]), row["method"], str(row["success"]["n"]), *cells)
    return table


def _cell(value: dict[str, Any], scale: float) -> str:
    text = f"{value['mean'] * scale:.1f}"
    return text if value["low"] is None else f"{text} [{value['low'] * scale:.1f}, {value['high'] * scale:.1f}]"


if __name__ == "__main__":
    main()
