"""Advantages and returns of one episode, and their whitening over the global batch.  Pure numpy, float64 inside.

A step is one of the student's turns (turn credit) or one of its tokens (token credit).  Whatever stands between two
steps (observations, template tokens, turns written by a teacher or injected) belongs to the environment: it is not a
step, and its reward is part of the step before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def gae(rewards: Float, values: Float, bootstrap: float, gamma: float, gae_lambda: float) -> Float:
    """Generalised advantage estimates of one episode (arXiv 1506.02438, eq. 16), one per step.

    rewards, values: one number a step; values[k] is V of the state *before* step k.
    bootstrap: V of the state after the last step where the episode was truncated, 0 where it terminated.
    delta_k = r_k + gamma V(s_{k+1}) - V(s_k);  A_k = delta_k + gamma lambda A_{k+1}, cut after the last step.
    """
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards and {len(values)} values: every step needs one of each")
    next_values = np.append(np.asarray(values[1:], dtype=np.float64), bootstrap)[: len(values)]
    deltas = rewards + gamma * next_values - values
    advantages = np.empty(len(deltas), dtype=np.float64)
    running = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        running = deltas[step] + gamma * gae_lambda * running
        advantages[step] = running
    return advantages


def student_rewards(rewards_K: Float, student_K: NDArray[np.bool_]) -> Float:
    """Rewards of the student's turns, with those of the turns that others wrote folded into the student's turn before.

    Rewards before the first of the student's turns are no one's and are dropped.
    """
    steps_K = np.cumsum(student_K) - 1
    owned_K = steps_K >= 0
    totals = np.bincount(steps_K[owned_K], weights=np.asarray(rewards_K, dtype=np.float64)[owned_K])
    return totals.astype(np.float64)


def token_rewards(rewards_K: Float, token_counts_K: NDArray[np.int64]) -> Float:
    """One reward a token: a turn's reward on its last token, 0 on the others.  Every turn must have a token."""
    if (token_counts_K < 1).any():
        raise ValueError("a student's turn without a trainable token has nowhere to put its reward")
    rewards = np.zeros(int(token_counts_K.sum()), dtype=np.float64)
    rewards[np.cumsum(token_counts_K) - 1] = rewards_K
    return rewards


def whiten(advantages_N: Float) -> Float:
    """Zero mean and unit variance over every trained token of the global batch (all ranks, all mini-batches).

    Fewer than 2 tokens, or tokens that are all alike, have no scale: they are returned as they are.
    """
    if len(advantages_N) < 2:
        return advantages_N
    deviation = float(advantages_N.std())
    if deviation < 1e-8:
        return advantages_N
    return (advantages_N - advantages_N.mean()) / deviation


def explained_variance(values: NDArray, returns: NDArray) -> float:
    """1 - Var(returns - values) / Var(returns); 0 when the returns do not vary."""
    variance = float(np.var(returns)) if len(returns) else 0.0
    return 0.0 if variance < 1e-12 else 1.0 - float(np.var(returns - values)) / variance


def effective_sample_share(log_weights_N: Float) -> float:
    """(sum w)**2 / (N sum w**2) of importance weights w, in (0, 1]; 1 when sampler and learner agree."""
    if len(log_weights_N) == 0:
        return 1.0
    weights_N = np.exp(log_weights_N - log_weights_N.max())
    return float(weights_N.sum() ** 2 / (len(weights_N) * np.square(weights_N).sum()))
