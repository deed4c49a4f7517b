"""Trajectories become rows: the only place where tokens meet positions.  Pure numpy.

A row is one sample of one trajectory.  A *scored* token is one that the student sampled in a turn of its own: those of
prompts, observations, templates, teachers, experts and injections are read by the model and never trained on.
The logit at position i-1 scores token i: `Row.predictors_N` is where that is written, once.

Letters: T tokens, N scored tokens, G turns of the student's, S states that have a return, k ids of the teacher's
support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Sample, Trajectory, Turn, TurnGuidance

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(slots=True)
class Row:
    """One sample, and what is to be learnt from it.  Positions count from the row's first token.

    predictors_N: position of the logit that scores each token (its own position minus 1).
    turn_N, turn_G: number of the turn, over the whole batch; `trajectory` counts likewise.
    support_*: the teacher's signal; an id of -1 and a logprob of -inf are padding, guided_N is False without a teacher.
    states_G: position of the state before each of the student's turns; teacher_values_G is NaN without a teacher's.
    ends_episode: this is the last sample of its trajectory, so its last position is the state after the last step.
    Known later: `targets` sets the old policy's logprobs, the advantages and the states that have a return;
    `batch.weigh` sets the weights.  Until then old = behaviour, and nothing weighs anything.
    """

    trajectory: int
    ends_episode: bool
    temperature: float
    token_ids_T: Ints
    token_ids_N: Ints
    predictors_N: Ints
    turn_N: Ints
    behaviour_N: Floats
    guided_N: NDArray[np.bool_]
    support_ids_N_k: Ints
    support_logprobs_N_k: Floats
    support_tail_N: Floats
    states_G: Ints
    turn_G: Ints
    teacher_values_G: Floats
    old_logprobs_N: Floats = field(init=False)
    advantages_N: Floats = field(init=False)
    states_S: Ints = field(init=False)
    turn_S: Ints = field(init=False)
    returns_S: Floats = field(init=False)
    kl_weights_N: Floats = field(init=False)
    ppo_weights_N: Floats = field(init=False)
    return_weights_S: Floats = field(init=False)
    teacher_weights_G: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.old_logprobs_N = self.behaviour_N
        self.advantages_N = np.zeros_like(self.behaviour_N)
        self.states_S = self.turn_S = np.zeros(0, np.int64)
        self.returns_S = self.return_weights_S = np.zeros(0, np.float32)
        self.kl_weights_N = self.ppo_weights_N = np.zeros_like(self.behaviour_N)
        self.teacher_weights_G = np.zeros_like(self.teacher_values_G)


def build_rows(trajectories: Sequence[Trajectory]) -> list[Row]:
    """The rows of every trajectory that did not fail.

    Raises ValueError naming the episode for arrays that do not fit together.
    """
    rows: list[Row] = []
    turns_so_far = 0
    for number, trajectory in enumerate(trajectories):
        if trajectory.failure is not None:
            continue
        if trajectory.guidance and len(trajectory.guidance) != len(trajectory.turns):
            raise ValueError(
                f"episode {trajectory.spec.episode_id}: {len(trajectory.guidance)} guidance entries for "
                f"{len(trajectory.turns)} turns; give one entry a turn, None where the teacher said nothing"
            )
        for index, sample in enumerate(trajectory.samples):
            turns = [turn for turn in trajectory.turns if turn.sample == index]
            rows.append(_row(trajectory, number, sample, turns, turns_so_far))
        turns_so_far += len(trajectory.turns)
    return rows


def _row(trajectory: Trajectory, number: int, sample: Sample, turns: list[Turn], first_turn: int) -> Row:
    where = f"episode {trajectory.spec.episode_id}"
    own = [turn for turn in turns if turn.author == "student"]
    positions = [_trained_positions(where, sample, turn) for turn in own]
    guides = [_guide(where, trajectory, turn, kept) for turn, kept in zip(own, positions, strict=True)]
    counts = [len(kept) for kept in positions]
    positions_N = np.concatenate([*positions, np.zeros(0, np.int64)])
    behaviour_N = sample.logprobs_T[positions_N].astype(np.float32)
    if not np.isfinite(behaviour_N).all():
        raise ValueError(f"{where}: a trainable token has no finite behaviour logprob")
    width = max((guide[0].shape[1] for guide in guides if guide is not None), default=1)
    ids_N_k = np.full((len(positions_N), width), -1, np.int64)
    logprobs_N_k = np.full((len(positions_N), width), -np.inf, np.float32)
    tail_N = np.full(len(positions_N), -np.inf, np.float32)
    guided_N = np.zeros(len(positions_N), np.bool_)
    offset = 0
    for guide, count in zip(guides, counts, strict=True):
        here = slice(offset, offset + count)
        offset += count
        if guide is not None:
            k = guide[0].shape[1]
            ids_N_k[here, :k], logprobs_N_k[here, :k], tail_N[here] = guide
            guided_N[here] = True
    logprobs_N_k[ids_N_k < 0] = -np.inf
    turn_G = np.array([first_turn + turn.index for turn in own], np.int64)
    return Row(
        trajectory=number,
        ends_episode=sample is trajectory.samples[-1],
        temperature=trajectory.spec.temperature,
        token_ids_T=sample.token_ids_T.astype(np.int64),
        token_ids_N=sample.token_ids_T[positions_N].astype(np.int64),
        predictors_N=positions_N - 1,
        turn_N=np.repeat(turn_G, counts),
        behaviour_N=behaviour_N,
        guided_N=guided_N,
        support_ids_N_k=ids_N_k,
        support_logprobs_N_k=logprobs_N_k,
        support_tail_N=tail_N,
        states_G=np.array([turn.start - 1 for turn in own], np.int64),
        turn_G=turn_G,
        teacher_values_G=np.array([_teacher_value(trajectory, turn) for turn in own], np.float32),
    )


def _trained_positions(where: str, sample: Sample, turn: Turn) -> Ints:
    if not 0 < turn.start < turn.end <= len(sample.token_ids_T):
        raise ValueError(
            f"{where}: turn {turn.index} covers tokens {turn.start}..{turn.end} of {len(sample.token_ids_T)}"
        )
    inside = slice(turn.start, turn.end)
    if (sample.turn_ids_T[inside] != turn.index).any():
        raise ValueError(f"{where}: turn {turn.index} covers tokens whose turn_ids say another turn")
    kept = turn.start + np.flatnonzero(sample.trainable_T[inside])
    if not len(kept):
        raise ValueError(f"{where}: turn {turn.index} is the student's and has no trainable token")
    return kept


def _guidance(trajectory: Trajectory, turn: Turn) -> TurnGuidance | None:
    return trajectory.guidance[turn.index] if trajectory.guidance else None


def _guide(where: str, trajectory: Trajectory, turn: Turn, kept: Ints) -> tuple[Ints, Floats, Floats] | None:
    guidance = _guidance(trajectory, turn)
    if guidance is None:
        return None
    n = turn.end - turn.start
    shapes = (guidance.support_ids_nk.shape, guidance.support_logprobs_nk.shape, guidance.tail_logprobs_n.shape)
    if shapes[0] != shapes[1] or shapes[0][:1] != (n,) or shapes[2] != (n,):
        raise ValueError(f"{where}: guidance of turn {turn.index} has shapes {shapes} for a turn of {n} tokens")
    if guidance.turn != turn.index:
        raise ValueError(f"{where}: guidance of turn {guidance.turn} stands where turn {turn.index} belongs")
    picked = kept - turn.start
    return (
        guidance.support_ids_nk[picked].astype(np.int64),
        guidance.support_logprobs_nk[picked].astype(np.float32),
        guidance.tail_logprobs_n[picked].astype(np.float32),
    )


def _teacher_value(trajectory: Trajectory, turn: Turn) -> float:
    guidance = _guidance(trajectory, turn)
    return float("nan") if guidance is None or guidance.value is None else float(guidance.value)


def probe_row(token_ids: Sequence[int]) -> Row:
    """A row that scores every token but the first at temperature 1, for comparing logprobs; nothing is trained on."""
    ids_T = np.asarray(token_ids, np.int64)
    count = len(ids_T) - 1
    if count < 1:
        raise ValueError(f"a probe needs at least 2 tokens, got {len(ids_T)}")
    return Row(
        trajectory=-1,
        ends_episode=False,
        temperature=1.0,
        token_ids_T=ids_T,
        token_ids_N=ids_T[1:],
        predictors_N=np.arange(count),
        turn_N=np.zeros(count, np.int64),
        behaviour_N=np.zeros(count, np.float32),
        guided_N=np.zeros(count, np.bool_),
        support_ids_N_k=np.full((count, 1), -1, np.int64),
        support_logprobs_N_k=np.full((count, 1), -np.inf, np.float32),
        support_tail_N=np.full(count, -np.inf, np.float32),
        states_G=np.zeros(0, np.int64),
        turn_G=np.zeros(0, np.int64),
        teacher_values_G=np.zeros(0, np.float32),
    )
