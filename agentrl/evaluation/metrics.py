"""The four measures of an evaluation, each as mean, confidence interval and n.  Pure functions of trajectories.

success         share of the clean episodes that reached their goal.
mean_turns      mean number of turns of the clean episodes, reached or not.
tool_accuracy   of the student's turns that call a tool in the clean episodes, the share whose label is ok.
error_recovery  share of the episodes that reached their goal after an injected, stated error.

A *clean* episode is one without an injection.  An episode that broke (`failure`) is counted and left out everywhere; so
is an injected one that ended before its injection was due, since it says nothing about recovery.

Intervals: Wilson's for shares of episodes; Student's t for a mean; for tool_accuracy, whose turns are not independent
within an episode, a percentile bootstrap over episodes (Wilson's on the number of episodes where all turns agree and a
bootstrap has nothing to resample).  Differences: `difference`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from agentrl.types import Label, Trajectory

BOOTSTRAP_RESAMPLES = 2000
METRICS = ("success", "mean_turns", "tool_accuracy", "error_recovery")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its confidence interval; all None where there is nothing to measure (and no interval at n = 1)."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The measures of one set of episodes, and what was left out of them."""

    success: Estimate
    mean_turns: Estimate
    tool_accuracy: Estimate
    error_recovery: Estimate
    failed: int
    """episodes left out because something that is not the student's doing broke"""
    missed_injections: int
    """injected episodes left out because they ended before the injection was due"""
    distinct_tasks: int
    """task signatures among the clean episodes that count"""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Metrics:
        estimates = {name: Estimate(**data[name]) for name in METRICS}
        return cls(**estimates, **{name: data[name] for name in ("failed", "missed_injections", "distinct_tasks")})


def measure(trajectories: Sequence[Trajectory], confidence: float = 0.95) -> Metrics:
    """The measures of a set of episodes, clean and injected together."""
    sound = [t for t in trajectories if t.failure is None]
    clean = [t for t in sound if t.spec.inject is None]
    injected = [t for t in sound if t.spec.inject is not None]
    played = [t for t in injected if any(turn.author == "injected" for turn in t.turns)]
    return Metrics(
        success=proportion(sum(t.success for t in clean), len(clean), confidence),
        mean_turns=mean([len(t.turns) for t in clean], confidence),
        tool_accuracy=ratio([_tool_turns(t) for t in clean], confidence),
        error_recovery=proportion(sum(t.success for t in played), len(played), confidence),
        failed=len(trajectories) - len(sound),
        missed_injections=len(injected) - len(played),
        distinct_tasks=len({t.signature for t in clean}),
    )


def proportion(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """A share of independent trials with Wilson's score interval (Wilson 1927)."""
    if n == 0:
        return Estimate(None, None, None, 0)
    interval = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n)


def mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """A mean of independent values with Student's t interval."""
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    center = float(np.mean(values))
    if n == 1:
        return Estimate(center, None, None, 1)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1) * stats.sem(values))
    return Estimate(center, center - half, center + half, n)


def ratio(parts: Sequence[tuple[int, int]], confidence: float = 0.95) -> Estimate:
    """Sum of hits over sum of trials of (hits, trials) pairs, one an episode; episodes are resampled, not trials.

    n is the number of trials.  Deterministic: the resampling is seeded.
    """
    parts = [part for part in parts if part[1]]
    hits, trials = (np.array([part[i] for part in parts], dtype=float) for i in (0, 1))
    n = int(trials.sum())
    if n == 0:
        return Estimate(None, None, None, 0)
    share = float(hits.sum() / n)
    if len(parts) == 1 or bool((hits * n == trials * hits.sum()).all()):
        wilson = proportion(round(share * len(parts)), len(parts), confidence)
        return Estimate(share, min(share, wilson.low or 0.0), max(share, wilson.high or 0.0), n)
    interval = stats.bootstrap(
        (hits, trials),
        lambda hits, trials, axis: hits.sum(axis) / trials.sum(axis),
        n_resamples=BOOTSTRAP_RESAMPLES,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(share, float(interval.low), float(interval.high), n)


def difference(before: Estimate, after: Estimate) -> Estimate:
    """After - before with an interval made from both intervals; n is the smaller one.

    MOVER (Zou and Donner 2008, Statistics in Medicine 27:1693), which for shares is Newcombe's hybrid score interval
    (1998, method 10).  It takes the two as independent; on the same tasks they mostly rise and fall together, and the
    interval is then too wide rather than too narrow.
    """
    n = min(before.n, after.n)
    if before.mean is None or after.mean is None:
        return Estimate(None, None, None, n)
    gain = after.mean - before.mean
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Estimate(gain, None, None, n)
    return Estimate(
        gain,
        gain - math.hypot(after.mean - after.low, before.high - before.mean),
        gain + math.hypot(after.high - after.mean, before.mean - before.low),
        n,
    )


def apart(before: Estimate, after: Estimate) -> bool:
    """Whether the two intervals do not touch: a stricter test than the difference's own interval."""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return False
    return before.high < after.low or after.high < before.low


def _tool_turns(trajectory: Trajectory) -> tuple[int, int]:
    """(right, all) of the student's turns that call a tool; turns in which the environment erred are left out."""
    labels = [
        turn.label
        for turn in trajectory.turns
        if turn.author == "student" and turn.action.tool_calls and turn.label != Label.ENV_ERROR
    ]
    return sum(label == Label.OK for label in labels), len(labels)
