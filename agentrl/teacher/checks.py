"""From a request to `ScoreItem`s that no scorer can stumble over.

Every rule of `POST /v1/score` that a schema cannot say stands here, once, for JSON and binary alike: ids inside of the
vocabulary, spans inside of their sequence, sizes inside of the limits.  Sizes are checked before anything is allocated.
Raises Problem naming the place, the value and the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.teacher.identity import TeacherIdentity
from agentrl.teacher.problems import Problem, ProblemItem
from agentrl.teacher.schemas import MIN_TEMPERATURE, Limits, ScoreRequest
from agentrl.teacher.scorer import ScoreItem
from agentrl.teacher.wire import BinaryRequest


def items_from_json(request: ScoreRequest, limits: Limits, identity: TeacherIdentity) -> list[ScoreItem]:
    sequences = [np.array(s.token_ids, np.int32) for s in request.sequences]
    turns = [np.array([(t.start, t.end) for t in s.turns], np.int32) for s in request.sequences]
    named = [s.support_ids for s in request.sequences]
    positions = _check(sequences, turns, request.top_k, request.temperature, limits, identity)
    for row, ids in enumerate(named):
        if ids is not None and len(ids) != positions[row]:
            raise _bad_support(f"sequences/{row}/support_ids", len(ids), positions[row])
    widths = [max(map(len, ids), default=0) if ids else 0 for ids in named]
    _check_support(positions, widths, request.top_k, limits)
    return [
        _item(row, sequences[row], turns[row], _padded(ids, widths[row]), request.top_k, request.temperature, identity)
        for row, ids in enumerate(named)
    ]


def items_from_binary(request: BinaryRequest, limits: Limits, identity: TeacherIdentity) -> list[ScoreItem]:
    positions = _check(request.token_ids, request.turns, request.top_k, request.temperature, limits, identity)
    named: list[NDArray[np.int32] | None] = [None] * len(positions)
    if request.named_ids_P_m is not None:
        if len(request.named_ids_P_m) != sum(positions):
            raise _bad_support("support_ids", len(request.named_ids_P_m), sum(positions))
        _check_support(positions, [request.named_ids_P_m.shape[1]] * len(positions), request.top_k, limits)
        named = list(np.split(request.named_ids_P_m, np.cumsum(positions)[:-1]))
    else:
        _check_support(positions, [0] * len(positions), request.top_k, limits)
    return [
        _item(row, request.token_ids[row], request.turns[row], ids, request.top_k, request.temperature, identity)
        for row, ids in enumerate(named)
    ]


def _check(
    sequences: Sequence[NDArray],
    turns: Sequence[NDArray],
    top_k: int,
    temperature: float,
    limits: Limits,
    identity: TeacherIdentity,
) -> list[int]:
    """Positions to score in each sequence."""
    if len(sequences) > limits.sequences:
        raise _too_large("sequences", len(sequences), limits.sequences)
    tokens = sum(map(len, sequences))
    if tokens > limits.request_tokens:
        raise _too_large("tokens of all sequences", tokens, limits.request_tokens)
    if not 0 <= top_k <= identity.vocabulary:
        detail = f"top_k is {top_k}; it must be 0 to {identity.vocabulary}, the size of the vocabulary"
        raise _unprocessable("top-k-out-of-range", "top_k", detail, top_k, identity.vocabulary)
    # A binary request has not been through the schema: NaN fails this comparison too.
    if not MIN_TEMPERATURE <= temperature <= 100.0:
        detail = f"temperature is {temperature}; it must be {MIN_TEMPERATURE} to 100"
        value = temperature if math.isfinite(temperature) else None
        raise _unprocessable("temperature-out-of-range", "temperature", detail, value, 100.0)
    for row, (ids_T, spans_K_2) in enumerate(zip(sequences, turns, strict=True)):
        if len(ids_T) > identity.context_length:
            detail = f"sequence {row} has {len(ids_T)} tokens; the context length is {identity.context_length}"
            where = f"sequences/{row}/token_ids"
            raise _unprocessable("sequence-too-long", where, detail, len(ids_T), identity.context_length)
        _check_vocabulary(f"sequences/{row}/token_ids", ids_T, 0, identity.vocabulary)
        _check_spans(row, spans_K_2, len(ids_T))
    return [int((spans[:, 1].astype(np.int64) - spans[:, 0]).sum()) for spans in turns]


def _check_spans(row: int, spans_K_2: NDArray, length: int) -> None:
    if len(spans_K_2) == 0:
        raise _unprocessable(
            "no-turns", f"sequences/{row}/turns", f"sequence {row} has no turns; it must have one", 0, 1
        )
    before = 1
    for index, (start, end) in enumerate(spans_K_2.tolist()):
        where = f"sequences/{row}/turns/{index}"
        if not 1 <= start < end <= length:
            detail = (
                f"the span ({start}, {end}) must satisfy 1 <= start < end <= {length}, the length of sequence {row}"
            )
            raise _unprocessable("span-out-of-range", where, detail, end if end > length else start, length)
        if start < before:
            detail = f"the span ({start}, {end}) starts before {before}, where the span before it ends"
            raise _unprocessable("spans-overlap", where, detail, start, before)
        before = end


def _check_support(positions: Sequence[int], widths: Sequence[int], top_k: int, limits: Limits) -> None:
    entries = sum(n * (top_k + 1 + m) for n, m in zip(positions, widths, strict=True))
    if entries > limits.support_entries:
        raise _too_large("positions x (top_k + 1 + named ids)", entries, limits.support_entries)


def _check_vocabulary(where: str, ids: NDArray, lowest: int, vocabulary: int) -> None:
    bad = np.argwhere((ids < lowest) | (ids >= vocabulary))
    if len(bad):
        place = "/".join(map(str, bad[0].tolist()))
        value = int(ids[tuple(bad[0])])
        detail = f"{where}/{place} is {value}; the vocabulary has the ids 0 to {vocabulary - 1}"
        raise _unprocessable("out-of-vocabulary", f"{where}/{place}", detail, value, vocabulary - 1)


def _item(
    row: int,
    ids_T: NDArray,
    spans_K_2: NDArray,
    named_n_m: NDArray | None,
    top_k: int,
    temperature: float,
    identity: TeacherIdentity,
) -> ScoreItem:
    if named_n_m is not None:
        _check_vocabulary(f"sequences/{row}/support_ids", named_n_m, -1, identity.vocabulary)
        if named_n_m.shape[1] == 0:
            named_n_m = None
    return ScoreItem(ids_T, spans_K_2, named_n_m, top_k, temperature)


def _padded(ids: list[list[int]] | None, width: int) -> NDArray[np.int32] | None:
    if ids is None:
        return None
    padded_n_m = np.full((len(ids), width), -1, np.int32)
    for row, named in enumerate(ids):
        padded_n_m[row, : len(named)] = named
    return padded_n_m


def _bad_support(where: str, got: int, positions: int) -> Problem:
    detail = f"{where} names ids for {got} positions; the turns have {positions} tokens"
    return _unprocessable("support-does-not-fit", where, detail, got, positions)


def _too_large(what: str, value: int, limit: int) -> Problem:
    detail = f"{what}: {value} is more than this service's limit of {limit}; send several requests"
    return Problem(413, "request-too-large", detail, limit=limit, value=value)


def _unprocessable(kind: str, where: str, detail: str, value: float | None, limit: float) -> Problem:
    errors = [ProblemItem(pointer=f"#/{where}", detail=detail)]
    return Problem(422, kind, detail, limit=limit, value=value, errors=errors)
