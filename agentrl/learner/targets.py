"""What the old policy said becomes advantages and returns, once a step, before the first update.  Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.config import Ppo
from agentrl.learner import advantages as adv
from agentrl.learner.rows import Floats, Row
from agentrl.types import Trajectory


@dataclass(slots=True)
class RowScores:
    """What the student says of one row before the update.

    Logprobs and entropies of its scored tokens at the sampling temperature, and the value of the state after every one
    of its tokens.
    """

    logprobs_N: Floats
    entropy_N: Floats
    values_T: Floats


def set_targets(
    rows: Sequence[Row], scores: Sequence[RowScores], trajectories: Sequence[Trajectory], ppo: Ppo
) -> dict[str, float]:
    """Fill old logprobs, advantages, return states and returns in every row; give the figures to log.

    Turn credit: a step is a turn, V is taken before its first token, and its advantage goes to all of its tokens.
    Token credit: a step is a scored token, V is taken before it, the turn's reward falls on the turn's last token.
    A terminated episode ends at 0; every other one at the value of the state after its last step.
    """
    by_trajectory: dict[int, list[tuple[Row, RowScores]]] = {}
    for row, score in zip(rows, scores, strict=True):
        row.old_logprobs_N = score.logprobs_N
        by_trajectory.setdefault(row.trajectory, []).append((row, score))
    values: list[np.ndarray] = []
    for number, parts in by_trajectory.items():
        values.append(_set_episode(trajectories[number], parts, ppo))
    advantages_N = np.concatenate([row.advantages_N for row in rows])
    if ppo.whiten:
        whitened_N = adv.whiten(advantages_N.astype(np.float64)).astype(np.float32)
        cuts = np.cumsum([len(row.advantages_N) for row in rows])[:-1]
        for row, piece in zip(rows, np.split(whitened_N, cuts), strict=True):
            row.advantages_N = piece
    log_weights_N = np.concatenate([row.old_logprobs_N - row.behaviour_N for row in rows]).astype(np.float64)
    returns_S = np.concatenate([row.returns_S for row in rows])
    return {
        "ppo/ess": adv.effective_sample_share(log_weights_N),
        "ppo/old_mu_gap": float(np.abs(log_weights_N).mean()) if len(log_weights_N) else 0.0,
        "ppo/old_mu_gap_max": float(np.abs(log_weights_N).max(initial=0.0)),
        "ppo/advantage_mean": float(advantages_N.mean()) if len(advantages_N) else 0.0,
        "ppo/advantage_std": float(advantages_N.std()) if len(advantages_N) else 0.0,
        "value/explained_variance": adv.explained_variance(np.concatenate(values), returns_S),
        "value/return_mean": float(returns_S.mean()) if len(returns_S) else 0.0,
        **(_teacher_figures(rows) if ppo.credit == "turn" else {}),
    }


def _teacher_figures(rows: Sequence[Row]) -> dict[str, float]:
    """How far the teacher's values can be believed of states that the student got itself into.

    The share of turns with a value, how much of the returns' variance the values explain, and their mean less the
    returns'.
    """
    values_G = np.concatenate([row.teacher_values_G for row in rows]).astype(np.float64)
    known_G = np.isfinite(values_G)
    figures = {"value/teacher_share": float(known_G.mean()) if len(known_G) else 0.0}
    if known_G.any():
        returns_G = np.concatenate([row.returns_S for row in rows])[known_G]
        figures["value/teacher_explained_variance"] = adv.explained_variance(values_G[known_G], returns_G)
        figures["value/teacher_bias"] = float((values_G[known_G] - returns_G).mean())
    return figures


def _set_episode(trajectory: Trajectory, parts: list[tuple[Row, RowScores]], ppo: Ppo) -> np.ndarray:
    """Fill the rows of one episode, which are in the order of its samples; give V of every return state."""
    rows = [row for row, _ in parts]
    last_row, last_score = parts[-1]
    if not last_row.ends_episode:
        raise ValueError(f"episode {trajectory.spec.episode_id}: its last sample is missing from the batch")
    bootstrap = 0.0 if trajectory.terminated else float(last_score.values_T[len(last_row.token_ids_T) - 1])
    rewards = adv.student_rewards(
        np.array([turn.reward for turn in trajectory.turns], np.float64),
        np.array([turn.author == "student" for turn in trajectory.turns], np.bool_),
    )
    counts = [np.unique(row.turn_N, return_counts=True)[1] for row in rows]
    if ppo.credit == "token":
        rewards = adv.token_rewards(rewards, np.concatenate(counts)) if len(rewards) else rewards
        for row in rows:
            row.states_S, row.turn_S = row.predictors_N, row.turn_N
    else:
        for row in rows:
            row.states_S, row.turn_S = row.states_G, row.turn_G
    values = np.concatenate([score.values_T[row.states_S] for row, score in parts]).astype(np.float64)
    advantages = adv.gae(rewards, values, bootstrap, ppo.gamma, ppo.gae_lambda)
    cuts = np.cumsum([len(row.states_S) for row in rows])[:-1]
    pieces = zip(rows, counts, np.split(advantages, cuts), np.split(advantages + values, cuts), strict=True)
    for row, count, advantage, returns in pieces:
        row.returns_S = returns.astype(np.float32)
        spread = advantage if ppo.credit == "token" else np.repeat(advantage, count)
        row.advantages_N = spread.astype(np.float32)
    return values
