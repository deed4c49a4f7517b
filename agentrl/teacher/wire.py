"""`POST /v1/score` in binary: one safetensors file each way.  numpy only, nothing unpickled.

Request:   token_ids [N] int32        all sequences one after another
           sequence_lengths [B] int32 their lengths, summing to N
           turns [K, 3] int32         (sequence, start, end), ascending
           top_k [1] int32, temperature [1] float64
           support_ids [P, m] int32   optional; P positions: the tokens of all turns in order; -1 pads
Answer:    support_ids [P, k] int32, support_logprobs [P, k] float32    -1 and -inf pad
           tail_logprobs [P] float32   -inf: no mass outside of the support
           values [K] float32          NaN: the teacher has no value head

B sequences, K turns of all of them, P positions, k support, m named ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from agentrl.teacher.scorer import ItemScores, ScoreItem

MEDIA_TYPE = "application/vnd.safetensors"

_DTYPES = {"I32": np.int32, "F32": np.float32, "F64": np.float64}
_REQUEST = {"token_ids": ("I32", 1), "sequence_lengths": ("I32", 1), "turns": ("I32", 2), "top_k": ("I32", 1)}
_REQUEST |= {"temperature": ("F64", 1), "support_ids": ("I32", 2)}
_ANSWER = {"support_ids": ("I32", 2), "support_logprobs": ("F32", 2), "tail_logprobs": ("F32", 1), "values": ("F32", 1)}


class WireError(ValueError):
    """Bytes that are not what this module's docstring says."""


@dataclass(frozen=True, slots=True)
class BinaryRequest:
    """A request whose shapes fit together; its values are still to be checked."""

    token_ids: list[NDArray[np.int32]]
    turns: list[NDArray[np.int32]]
    """[K of the sequence, 2] each"""
    named_ids_P_m: NDArray[np.int32] | None
    top_k: int
    temperature: float


def encode_request(items: Sequence[ScoreItem]) -> bytes:
    """One request for `items`, at least one.  Raises ValueError unless all have one top_k and one temperature."""
    if len({(item.top_k, item.temperature) for item in items}) != 1:
        raise ValueError("the items of one request must share top_k and temperature, and there must be one at least")
    tensors = {
        "token_ids": np.concatenate([item.token_ids_T for item in items]).astype(np.int32),
        "sequence_lengths": np.array([len(item.token_ids_T) for item in items], np.int32),
        "turns": np.concatenate([np.insert(item.turns_K_2, 0, row, axis=1) for row, item in enumerate(items)]).astype(
            np.int32
        ),
        "top_k": np.array([items[0].top_k], np.int32),
        "temperature": np.array([items[0].temperature], np.float64),
    }
    if any(item.named_ids_n_m is not None for item in items):
        named = [np.empty((_positions(i), 0)) if i.named_ids_n_m is None else i.named_ids_n_m for i in items]
        width = max(ids.shape[1] for ids in named)
        tensors["support_ids"] = np.concatenate([pad_columns(ids, width, -1) for ids in named]).astype(np.int32)
    return save(tensors)


def decode_request(body: bytes) -> BinaryRequest:
    """Raises WireError naming the tensor that is missing, superfluous, of the wrong type or shape."""
    tensors = _load(body, _REQUEST, optional={"support_ids"})
    lengths_B, turns_K_3 = tensors["sequence_lengths"].astype(np.int64), tensors["turns"]
    total = len(tensors["token_ids"])
    if lengths_B.size == 0 or lengths_B.min() < 1 or lengths_B.sum() != total:
        raise WireError(
            f"sequence_lengths must be positive and sum to the {total} token_ids, they sum to {lengths_B.sum()}"
        )
    if turns_K_3.shape[1] != 3:
        raise WireError(f"turns must have 3 columns (sequence, start, end), it has {turns_K_3.shape[1]}")
    sequence_K = turns_K_3[:, 0]
    if np.any(np.diff(sequence_K) < 0) or (
        sequence_K.size and not 0 <= sequence_K[0] <= sequence_K[-1] < lengths_B.size
    ):
        raise WireError(f"the first column of turns must ascend within 0..{lengths_B.size - 1}")
    for name in ("top_k", "temperature"):
        if tensors[name].shape != (1,):
            raise WireError(f"{name} must have one element, it has {tensors[name].size}")
    borders_B = np.searchsorted(sequence_K, np.arange(1, lengths_B.size))
    return BinaryRequest(
        token_ids=np.split(tensors["token_ids"], np.cumsum(lengths_B)[:-1]),
        turns=np.split(turns_K_3[:, 1:], borders_B),
        named_ids_P_m=tensors.get("support_ids"),
        top_k=int(tensors["top_k"][0]),
        temperature=float(tensors["temperature"][0]),
    )


def encode_answer(scores: Sequence[ItemScores], turns: Iterable[int]) -> bytes:
    """The answer for sequences with `turns` turns each."""
    width = max(item.support_ids_n_k.shape[1] for item in scores)
    values = [
        np.full(count, np.nan) if item.values_K is None else item.values_K
        for item, count in zip(scores, turns, strict=True)
    ]
    return save(
        {
            "support_ids": np.concatenate([pad_columns(item.support_ids_n_k, width, -1) for item in scores]),
            "support_logprobs": np.concatenate(
                [pad_columns(item.support_logprobs_n_k, width, -np.inf) for item in scores]
            ),
            "tail_logprobs": np.concatenate([item.tail_logprobs_n for item in scores]),
            "values": np.concatenate(values).astype(np.float32),
        }
    )


def decode_answer(body: bytes, items: Sequence[ScoreItem]) -> list[ItemScores]:
    """The answer to `encode_request(items)`.  Raises WireError for one that does not fit the question."""
    tensors = _load(body, _ANSWER, optional=set())
    positions = np.array([_positions(item) for item in items])
    turns = np.array([len(item.turns_K_2) for item in items])
    ids, logprobs, tails = tensors["support_ids"], tensors["support_logprobs"], tensors["tail_logprobs"]
    values = tensors["values"]
    if not (len(ids) == len(tails) == positions.sum() and ids.shape == logprobs.shape and len(values) == turns.sum()):
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        raise WireError(f"the answer has shapes {shapes} for {positions.sum()} positions in {turns.sum()} turns")
    at, turn_at = np.cumsum(positions)[:-1], np.cumsum(turns)[:-1]
    return [
        ItemScores(i, lp, tail, None if np.isnan(value).any() else value)
        for i, lp, tail, value in zip(
            np.split(ids, at), np.split(logprobs, at), np.split(tails, at), np.split(values, turn_at), strict=True
        )
    ]


def pad_columns(array_n_k: NDArray, width: int, value: float) -> NDArray:
    """`array_n_k` with columns of `value` on its right, `width` columns in all."""
    missing = width - array_n_k.shape[1]
    return np.pad(array_n_k, ((0, 0), (0, missing)), constant_values=value) if missing else array_n_k


def _positions(item: ScoreItem) -> int:
    return int((item.turns_K_2[:, 1] - item.turns_K_2[:, 0]).sum())


def _load(body: bytes, expected: dict[str, tuple[str, int]], optional: set[str]) -> dict[str, NDArray]:
    try:
        found = dict(safetensors.deserialize(body))
    except safetensors.SafetensorError as error:
        raise WireError(f"not a safetensors file: {error}") from error
    missing, unknown = expected.keys() - optional - found.keys(), found.keys() - expected.keys()
    if missing or unknown:
        raise WireError(f"tensors missing: {sorted(missing)}; unknown: {sorted(unknown)[:8]}")
    tensors = {}
    for name, tensor in found.items():
        dtype, dimensions = expected[name]
        if tensor["dtype"] != dtype or len(tensor["shape"]) != dimensions:
            raise WireError(
                f"{name} must be {dtype} with {dimensions} dimensions, "
                f"it is {tensor['dtype']} of shape {tensor['shape']}"
            )
        try:
            tensors[name] = np.frombuffer(tensor["data"], _DTYPES[dtype]).reshape(tensor["shape"])
        except ValueError as error:  # an empty tensor with absurd dimensions
            raise WireError(f"{name} has the shape {tensor['shape']}: {error}") from error
    return tensors
