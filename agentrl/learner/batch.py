"""Rows become micro-batches: padded, flattened and weighed, ready for one forward and backward pass.

Letters: B rows, T tokens padded on the right, N scored tokens, S states with a return, G states before a turn of the
student's, k support ids.  The models are causal, so a pad on the right is seen by pads alone, and nothing is read from
pads: no attention mask is needed, and no mask ever comes from a token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.learner.packing import mean_weights
from agentrl.learner.rows import Floats, Ints, Row


@dataclass(slots=True)
class MicroBatch:
    """What one rank sees in one pass.

    (row, predictor) and (row, state) are places in token_ids_B_T whose hidden state is read.  Weights carry the global
    denominators of their own terms and are 0 where a term does not apply.
    """

    token_ids_B_T: Ints
    row_N: Ints
    predictor_N: Ints
    token_ids_N: Ints
    temperature_N: Floats
    behaviour_N: Floats
    old_logprobs_N: Floats
    advantages_N: Floats
    ppo_weights_N: Floats
    support_ids_N_k: Ints
    support_logprobs_N_k: Floats
    support_tail_N: Floats
    kl_weights_N: Floats
    row_S: Ints
    state_S: Ints
    returns_S: Floats
    return_weights_S: Floats
    row_G: Ints
    state_G: Ints
    teacher_values_G: Floats
    teacher_weights_G: Floats


def weigh(rows: Sequence[Row], aggregate: str) -> None:
    """Set what every term weighs in the rows of one mini-batch; `aggregate` names the mean, states count as tokens do.

    The denominators are those of the whole mini-batch, whichever ranks and micro-batches its rows go to.
    """
    guided = [row.guided_N for row in rows]
    valued = [np.isfinite(row.teacher_values_G) for row in rows]
    for target, turns, chosen in (
        ("kl_weights_N", "turn_N", guided),
        ("ppo_weights_N", "turn_N", [np.ones(len(row.turn_N), np.bool_) for row in rows]),
        ("return_weights_S", "turn_S", [np.ones(len(row.turn_S), np.bool_) for row in rows]),
        ("teacher_weights_G", "turn_G", valued),
    ):
        sizes = [len(getattr(row, turns)) for row in rows]
        owners = np.repeat([row.trajectory for row in rows], sizes)
        weights = mean_weights(aggregate, _join(rows, turns), owners, np.concatenate(chosen))
        for row, piece in zip(rows, np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
            setattr(row, target, piece)


def collate(rows: Sequence[Row]) -> MicroBatch:
    """One micro-batch of these rows; without rows a token that weighs nothing, for a rank that has nothing to do."""
    rows = rows or [_EMPTY]
    token_ids_B_T = np.zeros((len(rows), max(len(row.token_ids_T) for row in rows)), np.int64)
    for index, row in enumerate(rows):
        token_ids_B_T[index, : len(row.token_ids_T)] = row.token_ids_T
    width = max(row.support_ids_N_k.shape[1] for row in rows)
    tokens = [len(row.token_ids_N) for row in rows]
    joined = {name: _join(rows, name) for name in _PER_TOKEN + _PER_RETURN + _PER_TURN}
    # A masked NaN still poisons the gradient of what it was subtracted from: 0 * NaN.  Its weight is 0 already.
    joined["teacher_values_G"] = np.nan_to_num(joined["teacher_values_G"])
    return MicroBatch(
        token_ids_B_T=token_ids_B_T,
        row_N=np.repeat(np.arange(len(rows)), tokens),
        predictor_N=_join(rows, "predictors_N"),
        temperature_N=np.repeat(np.array([row.temperature for row in rows], np.float32), tokens),
        support_ids_N_k=_widen([row.support_ids_N_k for row in rows], width, -1),
        support_logprobs_N_k=_widen([row.support_logprobs_N_k for row in rows], width, -np.inf),
        row_S=np.repeat(np.arange(len(rows)), [len(row.states_S) for row in rows]),
        state_S=_join(rows, "states_S"),
        row_G=np.repeat(np.arange(len(rows)), [len(row.states_G) for row in rows]),
        state_G=_join(rows, "states_G"),
        **joined,
    )


_PER_TOKEN = (
    "token_ids_N",
    "behaviour_N",
    "old_logprobs_N",
    "advantages_N",
    "ppo_weights_N",
    "support_tail_N",
    "kl_weights_N",
)
_PER_RETURN = ("returns_S", "return_weights_S")
_PER_TURN = ("teacher_values_G", "teacher_weights_G")


def _join(rows: Sequence[Row], name: str) -> NDArray:
    return np.concatenate([getattr(row, name) for row in rows])


def _widen(arrays: Sequence[NDArray], width: int, fill: float) -> NDArray:
    pads = [((0, 0), (0, width - array.shape[1])) for array in arrays]
    return np.concatenate([np.pad(a, pad, constant_values=fill) for a, pad in zip(arrays, pads, strict=True)])


_EMPTY = Row(
    trajectory=-1,
    ends_episode=False,
    temperature=1.0,
    token_ids_T=np.zeros(2, np.int64),
    token_ids_N=np.zeros(1, np.int64),
    predictors_N=np.zeros(1, np.int64),
    turn_N=np.zeros(1, np.int64),
    behaviour_N=np.zeros(1, np.float32),
    guided_N=np.zeros(1, np.bool_),
    support_ids_N_k=np.full((1, 1), -1, np.int64),
    support_logprobs_N_k=np.full((1, 1), -np.inf, np.float32),
    support_tail_N=np.full(1, -np.inf, np.float32),
    states_G=np.zeros(0, np.int64),
    turn_G=np.zeros(0, np.int64),
    teacher_values_G=np.zeros(0, np.float32),
)
