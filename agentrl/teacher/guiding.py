"""From trajectories to guidance: which turns are asked about, in requests of which size, and what is kept.

A sample is sent once, up to its last asked turn, and every turn of it comes back from one pass.  Turns without a
trainable token (a teacher's, an expert's, an injected error) and failed trajectories are not asked about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.teacher import wire
from agentrl.teacher.calls import Exchange
from agentrl.teacher.identity import TeacherIdentity
from agentrl.teacher.retrying import TeacherError
from agentrl.teacher.schemas import Limits
from agentrl.teacher.scorer import ItemScores, ScoreItem
from agentrl.types import Trajectory, Turn, TurnGuidance

#: ids [n, m] to score at a turn's n tokens beside the teacher's own, -1 pads; None: none
IdsPerPosition = Callable[[Trajectory, Turn], NDArray[np.int32] | None]


@dataclass(slots=True)
class GuideStats:
    """What one call of `guide` cost, and how much of the teacher's mass its answers hold."""

    requests: int = 0
    turns: int = 0
    tokens: int = 0
    """sent, the states before the turns included"""
    positions: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    """of the bodies, without HTTP's headers"""
    seconds: float = 0.0
    mass_on_support: float = float("nan")
    """mean over positions of 1 - exp(tail)"""


@dataclass(frozen=True, slots=True)
class _Ask:
    """One sample with the turns of it to ask about."""

    trajectory: Trajectory
    turns: list[Turn]
    item: ScoreItem


def guide_trajectories(
    exchange: Callable[[Sequence[ScoreItem]], Exchange],
    teacher: TeacherIdentity,
    trajectories: Sequence[Trajectory],
    *,
    top_k: int,
    temperature: float,
    request_tokens: int,
    in_flight: int,
    ids_per_position: IdsPerPosition | None,
) -> GuideStats:
    """See `TeacherClient.guide`."""
    started_s = time.perf_counter()
    asks = [a for t in trajectories for a in _asks(t, top_k, temperature, ids_per_position)]
    requests = list(_requests(asks, request_tokens))
    with ThreadPoolExecutor(in_flight, thread_name_prefix="teacher-client") as pool:
        answers = list(pool.map(lambda request: exchange([ask.item for ask in request]), requests))

    stats = GuideStats(requests=len(requests))
    values_count = teacher.value is not None and teacher.value.calibrated
    guidance: dict[int, list[TurnGuidance | None]] = {id(t): [None] * len(t.turns) for t in trajectories}
    mass = 0.0
    for request, answer in zip(requests, answers, strict=True):
        stats.bytes_sent += answer.bytes_sent
        stats.bytes_received += answer.bytes_received
        for ask, scores in zip(request, answer.scores, strict=True):
            for turn, found in zip(ask.turns, _guidance(ask, scores, values_count), strict=True):
                guidance[id(ask.trajectory)][turn.index] = found
            stats.turns += len(ask.turns)
            stats.tokens += len(ask.item.token_ids_T)
            stats.positions += len(scores.tail_logprobs_n)
            mass += float(-np.expm1(scores.tail_logprobs_n.astype(np.float64)).sum())
    for trajectory in trajectories:
        trajectory.guidance = guidance[id(trajectory)]
    stats.mass_on_support = mass / stats.positions if stats.positions else float("nan")
    stats.seconds = time.perf_counter() - started_s
    return stats


def _asks(
    trajectory: Trajectory, top_k: int, temperature: float, ids_per_position: IdsPerPosition | None
) -> Iterator[_Ask]:
    if trajectory.failure is not None:
        return
    for index, sample in enumerate(trajectory.samples):
        turns = [t for t in trajectory.turns if t.sample == index and sample.trainable_T[t.start : t.end].any()]
        if not turns:
            continue
        turns.sort(key=lambda turn: turn.start)
        spans_K_2 = np.array([(t.start, t.end) for t in turns], np.int32)
        named = None if ids_per_position is None else _named(trajectory, turns, ids_per_position)
        tokens_T = sample.token_ids_T[: turns[-1].end]
        yield _Ask(trajectory, turns, ScoreItem(tokens_T, spans_K_2, named, top_k, temperature))


def _named(trajectory: Trajectory, turns: list[Turn], ids_per_position: IdsPerPosition) -> NDArray[np.int32]:
    found = []
    for turn in turns:
        ids_n_m = ids_per_position(trajectory, turn)
        n = turn.end - turn.start
        if ids_n_m is None:
            ids_n_m = np.empty((n, 0), np.int32)
        if ids_n_m.ndim != 2 or len(ids_n_m) != n:
            raise ValueError(
                f"ids_per_position gave shape {ids_n_m.shape} for turn {turn.index} of {trajectory.spec.episode_id}, "
                f"which has {n} tokens: give [{n}, m]"
            )
        found.append(ids_n_m)
    width = max(ids.shape[1] for ids in found)
    return np.concatenate([wire.pad_columns(ids, width, -1) for ids in found]).astype(np.int32)


def _requests(asks: Sequence[_Ask], request_tokens: int) -> Iterator[list[_Ask]]:
    """Consecutive asks, up to `request_tokens` tokens and a service's limits together; a longer one goes alone."""
    limits = Limits()
    request: list[_Ask] = []
    tokens = positions = width = 0
    for ask in asks:
        item = ask.item
        n = int((item.turns_K_2[:, 1] - item.turns_K_2[:, 0]).sum())
        m = 0 if item.named_ids_n_m is None else item.named_ids_n_m.shape[1]
        new_width = max(width, item.top_k + 1 + m)
        full = (
            tokens + len(item.token_ids_T) > request_tokens
            or len(request) >= limits.sequences
            or (positions + n) * new_width > limits.support_entries
        )
        if request and full:
            yield request
            request, tokens, positions, new_width = [], 0, 0, item.top_k + 1 + m
        request.append(ask)
        tokens, positions, width = tokens + len(item.token_ids_T), positions + n, new_width
    if request:
        yield request


def _guidance(ask: _Ask, scores: ItemScores, values_count: bool) -> Iterator[TurnGuidance]:
    tokens_n = ask.item.token_ids_T[ask.item.positions_n]
    if not (scores.support_ids_n_k == tokens_n[:, None]).any(-1).all():
        raise TeacherError(
            f"the teacher's answer for {ask.trajectory.spec.episode_id} lacks a sampled token's own logprob"
        )
    at = 0
    for index, turn in enumerate(ask.turns):
        rows = slice(at, at + turn.end - turn.start)
        at = rows.stop
        ids_nk = scores.support_ids_n_k[rows]
        k = int((ids_nk >= 0).sum(-1).max())
        yield TurnGuidance(
            turn=turn.index,
            support_ids_nk=ids_nk[:, :k].copy(),
            support_logprobs_nk=scores.support_logprobs_n_k[rows, :k].copy(),
            tail_logprobs_n=scores.tail_logprobs_n[rows].copy(),
            value=float(scores.values_K[index]) if values_count and scores.values_K is not None else None,
        )
