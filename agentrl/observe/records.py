"""Trajectories as compressed JSON lines, one episode a line, with a schema version.  The master record of a run.

Everything of a `Trajectory` comes back as it was, token ids and logprobs to the bit.  Its guidance does not: k
probabilities for each token would be most of the file, so each guided turn keeps a summary.  Reading parses JSON and
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from agentrl.observe.files import write_whole
from agentrl.types import (
    AssistantMessage,
    EpisodeSpec,
    Failure,
    Injection,
    Label,
    Message,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    TurnGuidance,
)
from envs.contract import ParseStatus

SCHEMA = 1


class RecordError(Failure):
    """A trajectory file that cannot be read: says which file, which line and why."""


@dataclass(frozen=True, slots=True)
class GuidanceSummary:
    """What the teacher thought of one turn.

    value:        the teacher's value of the state before it.
    kl_sampled:   the log-ratio to the teacher: mean over the turn's tokens of log p(token) - log q(token), p as sampled
                  from and q the teacher at its own temperature.  One turn's may be negative; its expectation is
                  KL(student‖teacher) (the k1 estimate).  None where a token was not on the support.
    support_mass: mean over its tokens of the teacher's probability of the support.
    """

    value: float | None
    kl_sampled: float | None
    support_mass: float


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory as read back, `guidance` left empty, and the summaries in its place (one a turn, None unguided)."""

    trajectory: Trajectory
    summaries: list[GuidanceSummary | None]


def write_records(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a whole file of trajectories (`.jsonl.zst`), replacing what was there."""
    lines = (json.dumps(_encode(t), ensure_ascii=False, separators=(",", ":")) + "\n" for t in trajectories)
    # A lone surrogate (a model may well write one) is no UTF-8; "surrogatepass" carries it there and back.
    text = "".join(lines).encode("utf-8", "surrogatepass")
    write_whole(path, zstandard.ZstdCompressor(level=6, write_checksum=True).compress(text))


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, in order.  Raises RecordError for a file that is cut off, foreign or of another schema."""
    try:
        # At once and not as a stream: a stream that was cut off just ends.
        text = zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode("utf-8", "surrogatepass")
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is not a whole trajectory file: {error}") from error
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            data = json.loads(line)
            schema = data["schema"]
            record = _decode(data) if schema == SCHEMA else None
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}, line {number} is not a trajectory: {error!r}") from error
        if record is None:
            raise RecordError(f"{path}, line {number}: schema {schema!r}, but this version reads schema {SCHEMA}")
        yield record


def summarise(trajectory: Trajectory, guidance: TurnGuidance) -> GuidanceSummary:
    """The guidance of one turn in three figures.  Raises ValueError when it is not as long as the turn."""
    turn = trajectory.turns[guidance.turn]
    sample = trajectory.samples[turn.sample]
    ids_n = sample.token_ids_T[turn.start : turn.end]
    if len(ids_n) != len(guidance.support_ids_nk):
        raise ValueError(
            f"episode {trajectory.spec.episode_id}, turn {guidance.turn}: {len(ids_n)} tokens, but guidance for "
            f"{len(guidance.support_ids_nk)}"
        )
    on_support_nk = guidance.support_ids_nk == ids_n[:, None]
    kl = None
    if len(ids_n) and on_support_nk.any(axis=1).all():
        teacher_n = np.where(on_support_nk, guidance.support_logprobs_nk, -np.inf).max(axis=1)
        gap = float(np.mean(sample.logprobs_T[turn.start : turn.end] - teacher_n))
        kl = gap if np.isfinite(gap) else None
    mass = float(np.mean(-np.expm1(np.minimum(guidance.tail_logprobs_n, 0.0)))) if len(ids_n) else 1.0
    return GuidanceSummary(guidance.value, kl, mass)


def _encode(trajectory: Trajectory) -> dict[str, Any]:
    guided = {g.turn: g for g in trajectory.guidance if g is not None}
    return {
        "schema": SCHEMA,
        "spec": asdict(trajectory.spec),
        "opening": [_encode_message(m) for m in trajectory.opening],
        "tools": trajectory.tools,
        "samples": [_encode_sample(sample) for sample in trajectory.samples],
        "turns": [
            {**_encode_turn(turn), "guidance": asdict(summarise(trajectory, guided[i])) if i in guided else None}
            for i, turn in enumerate(trajectory.turns)
        ],
        **{name: getattr(trajectory, name) for name in _PLAIN_FIELDS},
    }


_PLAIN_FIELDS = ("terminated", "truncated", "success", "signature", "oracle_turns", "wall_s", "failure")


def _decode(data: dict[str, Any]) -> Record:
    spec = dict(data["spec"])
    if spec["inject"] is not None:
        spec["inject"] = Injection(**spec["inject"])
    summaries = [turn.pop("guidance") for turn in data["turns"]]
    trajectory = Trajectory(
        spec=EpisodeSpec(**spec),
        opening=tuple(_decode_message(m) for m in data["opening"]),
        tools=data["tools"],
        samples=[_decode_sample(sample) for sample in data["samples"]],
        turns=[_decode_turn(turn) for turn in data["turns"]],
        **{name: data[name] for name in _PLAIN_FIELDS},
    )
    return Record(trajectory, [None if s is None else GuidanceSummary(**s) for s in summaries])


def _encode_sample(sample: Sample) -> dict[str, list]:
    return {
        "token_ids": sample.token_ids_T.tolist(),
        "turn_ids": sample.turn_ids_T.tolist(),
        # float32 -> its shortest decimal -> the same float32; NaN is no JSON
        "logprobs": [None if np.isnan(x) else float(str(x)) for x in sample.logprobs_T],
        "trainable": sample.trainable_T.astype(int).tolist(),
    }


def _decode_sample(data: dict[str, list]) -> Sample:
    return Sample(
        token_ids_T=np.array(data["token_ids"], dtype=np.int32),
        turn_ids_T=np.array(data["turn_ids"], dtype=np.int16),
        logprobs_T=np.array([np.nan if x is None else x for x in data["logprobs"]], dtype=np.float32),
        trainable_T=np.array(data["trainable"], dtype=bool),
    )


def _encode_turn(turn: Turn) -> dict[str, Any]:
    data = {name: getattr(turn, name) for name in Turn.__slots__}
    data["action"] = {**asdict(turn.action), "tool_calls": [asdict(call) for call in turn.action.tool_calls]}
    data["observation"] = [_encode_message(m) for m in turn.observation]
    return data


def _decode_turn(data: dict[str, Any]) -> Turn:
    action = {**data["action"], "tool_calls": _decode_calls(data["action"]["tool_calls"])}
    return Turn(
        **{
            **data,
            "versions": tuple(data["versions"]),
            "action": AssistantMessage(**action),
            "observation": tuple(_decode_message(m) for m in data["observation"]),
            "label": Label(data["label"]),
        }
    )


def _encode_message(message: Message) -> dict[str, Any]:
    return {**asdict(message), "tool_calls": [asdict(call) for call in message.tool_calls]}


def _decode_message(data: dict[str, Any]) -> Message:
    return Message(**{**data, "tool_calls": _decode_calls(data["tool_calls"])})


def _decode_calls(calls: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**{**call, "status": ParseStatus(call["status"])}) for call in calls)
