"""How the loss weights move from `start` to `end` over a run, and how a promotion lifts them back.  Pure functions.

A new level is a new task: the student leans on the teacher again, so a promotion takes the weights a share of the way
back to the start, from where they move on to reach the end at the last step all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from agentrl.config import LossWeights, WeightTriple

Shape = Literal["constant", "linear", "cosine"]


def shape_at(shape: Shape, t: float) -> float:
    """How much of a way is gone at time `t` of [0, 1]: 0 at its start, 1 at its end (constant: never leaves).

    linear: t.  cosine: (1 - cos(pi t)) / 2, slow at both ends.
    """
    match shape:
        case "constant":
            return 0.0
        case "linear":
            return t
        case "cosine":
            return (1.0 - math.cos(math.pi * t)) / 2.0


def way_gone(shape: Shape, step: int, steps: int, promotions: Sequence[int] = (), lift: float = 0.0) -> float:
    """How much of the way from `start` to `end` is gone at step `step` of `steps` (0 to 1).

    Exactly 0 at step 0 and 1 at step `steps - 1`, unless the shape is constant.  A promotion after step p multiplies
    the way gone at p by `1 - lift`; step p + 1 starts there, on a way of the same shape over the steps that are left.
    Promotions at or after `step` have not happened yet.  Raises ValueError for a step outside the run.
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is outside of a run of {steps} steps (steps count from 0)")
    last = steps - 1
    first, gone = 0, 0.0

    def at(when: int) -> float:
        t = (when - first) / (last - first) if last > first else 0.0
        return gone + (1.0 - gone) * shape_at(shape, t)

    for promotion in sorted(promotions):
        if promotion >= step:
            break
        first, gone = promotion + 1, at(promotion) * (1.0 - lift)
    return at(step)


def loss_weights_at(config: LossWeights, step: int, steps: int, promotions: Sequence[int] = ()) -> WeightTriple:
    """The weights of KL, value and PPO at a step; `promotions` are the steps after which the curriculum went up."""
    gone = way_gone(config.shape, step, steps, promotions, config.lift_after_promotion)
    start, end = config.start, config.end

    def mix(a: float, b: float) -> float:
        return (1.0 - gone) * a + gone * b  # exact at both ends, unlike a + gone * (b - a)

    return WeightTriple(kl=mix(start.kl, end.kl), value=mix(start.value, end.value), ppo=mix(start.ppo, end.ppo))
