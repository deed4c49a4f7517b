"""The held-out suite: which episodes an evaluation plays, and the report of what came of them.

The suite depends on the environments, levels and number of tasks alone, not on the run's seed: two runs, and the two
ends of one run, are compared on the same tasks with the same draws.  Every task is played twice: clean, and with a
stated error forced upon the student early on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentrl.config import Job
from agentrl.evaluation.metrics import Metrics, measure
from agentrl.types import TASKS, EpisodeSpec, Trajectory, derive_seed, draw_injection

CANDIDATES = 10
"""task numbers looked at for each task of the suite, where repeats are left out"""

SignatureOf = Callable[[str, int, int], str]
"""(environment id, level, task) -> the meaning of that held-out task"""
Collect = Callable[[list[EpisodeSpec]], list[Trajectory]]


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found, overall and by level.  `to_dict` leaves the trajectories out."""

    name: str
    confidence: float
    overall: Metrics
    by_level: dict[int, Metrics]
    wall_s: float = 0.0
    trajectories: list[Trajectory] = field(default_factory=list, repr=False, compare=False)

    @property
    def signatures(self) -> set[str]:
        """The meanings of the tasks played; none of them may be met in training."""
        return {t.signature for t in self.trajectories if t.failure is None}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the overall measures at the top, each level's under `by_level`."""
        return {
            "name": self.name,
            "confidence": self.confidence,
            "wall_s": self.wall_s,
            **self.overall.to_dict(),
            "by_level": {str(level): metrics.to_dict() for level, metrics in self.by_level.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EvaluationReport:
        by_level = {int(level): Metrics.from_dict(metrics) for level, metrics in data["by_level"].items()}
        return cls(data["name"], data["confidence"], Metrics.from_dict(data), by_level, data["wall_s"])


def suite_levels(job: Job, ladders: Mapping[str, int]) -> list[int]:
    """The levels an evaluation plays: the job's, or the curriculum's start level and the one above.

    `ladders` is the number of levels of each environment; the catalogue has seen to it that the job asks for no more.
    """
    if job.evaluation.levels is not None:
        return sorted(set(job.evaluation.levels))
    highest = max(ladders[environment.id] for environment in job.environments)
    start = job.curriculum.start_level
    return [level for level in (start, start + 1) if level <= highest]


def build_suite(
    job: Job,
    ladders: Mapping[str, int],
    errors: Mapping[str, Sequence[str]],
    levels: Sequence[int] | None = None,
    signature_of: SignatureOf | None = None,
) -> list[EpisodeSpec]:
    """The episodes of the held-out suite, `evaluation.tasks` tasks for each environment and level that it has.

    `errors` names, for each environment id, the errors its `inject` knows; one without any is played clean alone.
    Task numbers are distinct; an easy level may have fewer meanings than that, and repeats count for less than their
    intervals say.  With `signature_of` no meaning is played twice, and such a level plays fewer tasks.
    """
    config = job.evaluation
    specs = []
    for e, environment in enumerate(job.environments):
        kinds = list(errors[environment.id])
        for level in levels if levels is not None else suite_levels(job, ladders):
            if level > ladders[environment.id]:
                continue
            for i, task in enumerate(_draw_tasks(environment.id, level, config.tasks, signature_of)):
                seed = derive_seed("heldout", environment.id, level, task)
                clean = EpisodeSpec(
                    episode_id=f"heldout-e{e}-l{level}-{i:04d}-clean",
                    env=environment.id,
                    level=level,
                    task=task,
                    seed=seed,
                    split="heldout",
                    language=environment.language,
                    temperature=config.temperature,
                    max_turns=config.max_turns,
                )
                specs.append(clean)
                if kinds:
                    injection = draw_injection(kinds, np.random.default_rng(seed))
                    injected_id = clean.episode_id.replace("clean", "injected")
                    specs.append(replace(clean, episode_id=injected_id, inject=injection))
    return specs


def _draw_tasks(env: str, level: int, n: int, signature_of: SignatureOf | None) -> Iterator[int]:
    """Up to n tasks of a level; the first m of n are those of a suite of m."""
    candidates = n if signature_of is None else CANDIDATES * n
    rng = np.random.default_rng(derive_seed("heldout", env, level))
    seen: set[str | int] = set()
    for _ in range(candidates):
        task = int(rng.integers(TASKS))
        meaning = task if signature_of is None else signature_of(env, level, task)
        if meaning not in seen:
            seen.add(meaning)
            yield task
        if len(seen) == n:
            return


def score(name: str, trajectories: Sequence[Trajectory], confidence: float = 0.95) -> EvaluationReport:
    """The report of episodes already played, say of a run folder's `trajectories/before`."""
    levels = sorted({t.spec.level for t in trajectories})
    return EvaluationReport(
        name=name,
        confidence=confidence,
        overall=measure(trajectories, confidence),
        by_level={level: measure([t for t in trajectories if t.spec.level == level], confidence) for level in levels},
        trajectories=list(trajectories),
    )


def evaluate(
    collect: Collect,
    job: Job,
    ladders: Mapping[str, int],
    errors: Mapping[str, Sequence[str]],
    *,
    name: str,
    levels: Sequence[int] | None = None,
    signature_of: SignatureOf | None = None,
) -> EvaluationReport:
    """Play the suite of `build_suite` with `collect` and report.

    `collect` returns one trajectory for each spec, in any order, a broken episode with its `failure` set; RuntimeError
    names what is missing or was not asked for.
    """
    specs = build_suite(job, ladders, errors, levels, signature_of)
    started = time.monotonic()
    trajectories = collect(specs)
    wall_s = time.monotonic() - started
    asked, got = [spec.episode_id for spec in specs], [t.spec.episode_id for t in trajectories]
    if sorted(asked) != sorted(got):
        missing, foreign = sorted(set(asked) - set(got)), sorted(set(got) - set(asked))
        raise RuntimeError(
            f"evaluation {name!r} asked for {len(asked)} episodes and got {len(got)}; missing {missing[:3]}, "
            f"not asked for {foreign[:3]}"
        )
    report = score(name, trajectories, job.evaluation.confidence)
    return EvaluationReport(name, report.confidence, report.overall, report.by_level, wall_s, report.trajectories)
