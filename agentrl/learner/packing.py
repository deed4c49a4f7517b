"""Which rows share a micro-batch, which rank gets it, and what every token weighs.  Pure numpy and lists of indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def mean_weights(aggregate: str, turn_N: Ints, trajectory_N: Ints, chosen_N: NDArray[np.bool_]) -> Floats:
    """Weight of each token such that the weighted sum is the named mean over the chosen ones; 0 for the others.

    token-mean: every token alike.  turn-mean: the mean of the turns' means.  trajectory-mean: the mean of the
    trajectories' means.  Called once on the tokens of all ranks and micro-batches, so the denominators are global.
    """
    weights_N = np.zeros(len(chosen_N), np.float64)
    if not chosen_N.any():
        return weights_N.astype(np.float32)
    if aggregate == "token-mean":
        weights_N[chosen_N] = 1.0 / chosen_N.sum()
        return weights_N.astype(np.float32)
    groups = {"turn-mean": turn_N, "trajectory-mean": trajectory_N}.get(aggregate)
    if groups is None:
        raise ValueError(f"unknown aggregate {aggregate!r}; known: token-mean, turn-mean, trajectory-mean")
    _, inverse, sizes = np.unique(groups[chosen_N], return_inverse=True, return_counts=True)
    weights_N[chosen_N] = 1.0 / (len(sizes) * sizes[inverse])
    return weights_N.astype(np.float32)


def pack(lengths: Sequence[int], budget_tokens: int, parts: int = 1) -> list[list[int]]:
    """Group rows, by index, into micro-batches of at most `budget_tokens` tokens, padding included; longest first.

    Rows of like length share a micro-batch.  Where there is less than a full budget for each of `parts` ranks, the
    budget shrinks so that every rank gets some.  A row longer than the budget stands alone: it cannot be divided.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    budget = min(budget_tokens, max(-(-sum(lengths) // parts), max(lengths, default=1)))
    groups: list[list[int]] = []
    for index in order:
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def deal(costs: Sequence[int], ranks: int) -> list[list[int | None]]:
    """Deal micro-batches, by index, to ranks: the dearest to the least loaded.

    Every rank gets the same number, because collectives hang when a rank takes fewer steps than the others; None
    stands for an empty one.
    """
    hands: list[list[int | None]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        hands[rank].append(index)
        load[rank] += costs[index]
    longest = max(len(hand) for hand in hands)
    for hand in hands:
        hand.extend([None] * (longest - len(hand)))
    return hands
