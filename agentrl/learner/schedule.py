"""The learning-rate schedule: a factor on every optimizer group's own learning rate."""

from __future__ import annotations

import math

from agentrl.config import Schedule


def lr_factor(schedule: Schedule, update: int, progress: float) -> float:
    """Height of the learning rate for optimizer step `update` (from 0), `progress` of the run being done (0 to 1).

    Linear warm-up over `warmup_steps` optimizer steps, constant, then half a cosine from 1 at `decay_from` of the run
    to `final` at its end.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must lie in 0..1, got {progress}")
    warmup = min(1.0, (update + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    if progress <= schedule.decay_from or schedule.decay_from >= 1.0:
        return warmup
    share = (progress - schedule.decay_from) / (1.0 - schedule.decay_from)
    return warmup * (schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * share)))
