"""One step as one line of `metrics.jsonl`.

    step, time_s, version, level, phase_s {plan, collect, guide, learn, sync},
    rollout {episodes, failed, truncated, success, turns, reward, tokens, tokens_per_s, success_by_level},
    teacher {…}, learner {group/name: …}, weights {kl, value, ppo}, parity_gap, events [text],
    promoted (null or the new level), evaluation (null)

`step` counts from 0, and so do the names of trajectory files (`step-00000`).  Everywhere else (progress, summary,
report, names of checkpoints and evaluations) a step's number is that of the steps done at its end, which is one more.
parity_gap is the largest one since the line before.

An evaluation is a line of its own with `step` (steps done when it was played), `time_s` and `evaluation` alone.  Units:
`_s` seconds, tokens as sampled by the student.  Readers cope with missing keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.types import Promotion, Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory], collect_s: float | None = None) -> dict[str, Any]:
    """What a step's episodes came to; means and shares are over those that did not break, None where all did."""
    sound = [t for t in trajectories if t.failure is None]
    by_level: dict[int, list[bool]] = defaultdict(list)
    for t in sound:
        by_level[t.spec.level].append(t.success)
    tokens = sum(t.n_generated for t in trajectories)
    return {
        "episodes": len(trajectories),
        "failed": len(trajectories) - len(sound),
        "truncated": _mean([t.truncated for t in sound]),
        "success": _mean([t.success for t in sound]),
        "turns": _mean([len(t.turns) for t in sound]),
        "reward": _mean([t.total_reward for t in sound]),
        "tokens": tokens,
        "tokens_per_s": tokens / collect_s if collect_s else None,
        "success_by_level": {str(level): _mean(won) for level, won in sorted(by_level.items())},
    }


def step_record(
    *,
    step: int,
    time_s: float,
    version: int,
    phase_s: Mapping[str, float],
    trajectories: Sequence[Trajectory],
    teacher: Any,
    learner: Mapping[str, float],
    weights: Any,
    parity_gap: float | None,
    promoted: Promotion | None,
    events: Sequence[str],
) -> dict[str, Any]:
    """The record of a step, before it is made plain JSON.  `level` is the highest one played."""
    reasons = [f"level {promoted.level}: {promoted.reason}"] if promoted else []
    return {
        "step": step,
        "time_s": time_s,
        "version": version,
        "level": max((t.spec.level for t in trajectories), default=None),
        "phase_s": dict(phase_s),
        "rollout": rollout_metrics(trajectories, phase_s.get("collect")),
        "teacher": teacher,
        "learner": dict(learner),
        "weights": weights,
        "parity_gap": parity_gap,
        "events": [*events, *reasons],
        "promoted": promoted.level if promoted else None,
        "evaluation": None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
