"""From the sums of ranks and micro-batches to the figures of one step.  Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.learner.rows import Row
from agentrl.learner.targets import RowScores

SQUARE_NORM = "square_norm/"
#: What every rank reports alike; everything else is a rank's part of a sum.
COMMON = ("grad_norm", "grad_norm_value", "lr", "lr_value")


def step_figures(
    rows: Sequence[Row], scores: Sequence[RowScores], answers: Sequence[Sequence[dict[str, float]]]
) -> dict[str, float]:
    """answers[rank][mini-batch] holds that rank's sums.  Losses and the like are means over the mini-batches.

    grad_norm/total: norm of the gradient of all weights before clipping, mean over mini-batches (AdamW, or ZeRO 0).
    grad_norm/value_head: norm of the gradient of the value head's own weights, which are no part of the model's.
    grad_norm/<term>: norm of the gradient of the weighted term with respect to the last hidden states (ADR 10), exact
    over all micro-batches and ranks, in the first mini-batch of the step.
    """
    minibatches = [
        {name: _combine(name, [mini[name] for mini in minis]) for name in minis[0]}
        for minis in zip(*answers, strict=True)
    ]
    figures: dict[str, float] = {}
    for name in minibatches[0]:
        if name.startswith(SQUARE_NORM):
            figures[f"grad_norm/{name.removeprefix(SQUARE_NORM)}"] = minibatches[0][name] ** 0.5
        else:
            figures[_NAMES.get(name) or name] = float(np.mean([mini[name] for mini in minibatches]))
    entropies = np.concatenate([score.entropy_N for score in scores])
    tokens = sum(len(row.token_ids_N) for row in rows)
    figures["policy/entropy"] = float(entropies.mean())
    figures["kl/guided_share"] = float(sum(row.guided_N.sum() for row in rows) / tokens)
    figures["learner/trained_tokens"] = float(tokens)
    figures["learner/updates"] = float(len(minibatches))
    return figures


_NAMES = {
    "grad_norm": "grad_norm/total",
    "grad_norm_value": "grad_norm/value_head",
    "lr": "lr/weights",
    "lr_value": "lr/value_head",
}


def _combine(name: str, parts: list[float]) -> float:
    return parts[0] if name in COMMON else float(sum(parts))
