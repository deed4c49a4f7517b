"""The vocabulary.  Every role speaks in these words and no role imports another; read this file first.

An *episode* is one dialogue with one environment.  A *turn* is one assistant message and what the environment answered.
A *trajectory* is the record of an episode, down to token ids.  *Guidance* is the teacher's signal for one turn.  A
*policy version* is the number of weight updates the student has had.

Imports neither torch nor ray: these objects travel between processes and into files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

import numpy as np
from numpy.typing import NDArray

from envs.contract import AssistantMessage, Label, Message, ToolCall

__all__ = [
    "TASKS",
    "AssistantMessage",
    "Author",
    "EpisodeSpec",
    "Failure",
    "Injection",
    "Label",
    "Message",
    "Outcome",
    "Placement",
    "PolicyVersion",
    "Promotion",
    "Sample",
    "ToolCall",
    "Trajectory",
    "Turn",
    "TurnGuidance",
    "WeightSnapshot",
    "derive_seed",
    "draw_injection",
    "vocabulary_size",
]

PolicyVersion = NewType("PolicyVersion", int)


class Failure(RuntimeError):
    """An error for people: says what was wrong, where, and what to do.  Commands print it without a traceback."""


#: Who wrote a turn.  Only a student's turns are trained on by the on-policy losses.
Author = Literal["student", "teacher", "expert", "injected"]


def vocabulary_size(tokenizer: Any) -> int:
    """How many ids a transformers tokenizer has.

    A model's output layer may have more rows, for the sake of round numbers.  Nobody ever samples, scores or compares
    those: engine, teacher and learner all cut them off before the softmax.
    """
    return max(tokenizer.get_vocab().values()) + 1


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from what names a random draw, say (run seed, step, task, attempt); the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Injection:
    """Force the stated error named `error` (one of the environment's `errors`) as assistant turn `turn` (from 0)."""

    error: str
    turn: int


TASKS = 2**31
"""task numbers are drawn below this; an environment makes a task out of any number"""

INJECTION_TURNS = (1, 2, 3)
"""turns (from 0) that an error may be forced at: after the student's own first one, early enough to need a way back"""


def draw_injection(errors: Sequence[str], rng: np.random.Generator) -> Injection:
    """One of an environment's `errors` at one of the early turns."""
    return Injection(errors[int(rng.integers(len(errors)))], int(rng.choice(INJECTION_TURNS)))


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to play.  `seed` drives sampling and injection; it derives from (run seed, step, task, attempt)."""

    episode_id: str
    env: str
    level: int
    task: int
    seed: int
    split: Literal["train", "heldout"] = "train"
    language: Literal["en", "zh"] = "en"
    attempt: int = 0
    temperature: float = 1.0
    max_turns: int | None = None
    max_turns_after_error: int | None = None
    inject: Injection | None = None


@dataclass(slots=True)
class Turn:
    """One assistant message and what followed.

    `sample`, `start`, `end` say where its tokens stand: `samples[sample].token_ids[start:end]`, the stop token included
    when one was sampled.  `start - 1` is the last token of the state that the turn was taken in.
    `versions` are the policy versions at its first and its last token; they differ when a weight sync fell into it.
    """

    index: int
    sample: int
    start: int
    end: int
    author: Author
    versions: tuple[PolicyVersion, PolicyVersion]
    action: AssistantMessage
    text: str
    finish: Literal["stop", "length"]
    observation: tuple[Message, ...]
    reward: float
    reward_parts: dict[str, float]
    label: Label
    first_error: bool
    steps_left: int
    state_hash: str


@dataclass(slots=True)
class Sample:
    """One growing list of token ids: what the model saw and wrote, exactly as sampled.  T tokens.

    turn_ids_T:  index of the turn that a token was written in, -1 for prompt, observation and template tokens.
    logprobs_T:  behaviour log-probability of a sampled token under the sampling distribution, NaN elsewhere.
    trainable_T: True for tokens that the student sampled, the stop token included.
    An episode has one sample unless its chat template rewrites history, which starts a new one.
    """

    token_ids_T: NDArray[np.int32]
    turn_ids_T: NDArray[np.int16]
    logprobs_T: NDArray[np.float32]
    trainable_T: NDArray[np.bool_]

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids_T), len(self.turn_ids_T), len(self.logprobs_T), len(self.trainable_T)}
        if len(lengths) != 1:
            raise ValueError(f"a sample's arrays must have one length, got {sorted(lengths)}")


@dataclass(slots=True)
class TurnGuidance:
    """The teacher's signal for one turn of n tokens on a support of k ids a token.

    support_ids_nk:      ids whose probability was asked for or ranked highest; the token itself is always among them.
    support_logprobs_nk: log q(id) at the teacher's temperature; -inf pads a shorter support (its id is then -1).
    tail_logprobs_n:     log of the mass outside of the support; -inf for a full vocabulary.
    value:               the teacher's value of the state before the turn, None when it has none.
    """

    turn: int
    support_ids_nk: NDArray[np.int32]
    support_logprobs_nk: NDArray[np.float32]
    tail_logprobs_n: NDArray[np.float32]
    value: float | None


@dataclass(slots=True)
class Trajectory:
    """The record of an episode.

    `terminated` and `truncated` are gymnasium's: terminated ends the task, truncated cuts it and is bootstrapped.
    `failure` is set when something that is not the student's doing broke (the environment, an actor): such a trajectory
    is recorded and counted, and left out of the loss.  The last sample ends with the tokens of the last observation, so
    that the state after the last step is there to bootstrap from.
    """

    spec: EpisodeSpec
    opening: tuple[Message, ...]
    tools: list[dict]
    samples: list[Sample]
    turns: list[Turn]
    terminated: bool
    truncated: bool
    success: bool
    signature: str
    oracle_turns: int
    wall_s: float
    failure: str | None = None
    guidance: list[TurnGuidance | None] = field(default_factory=list)

    @property
    def n_generated(self) -> int:
        """Tokens that the student sampled."""
        return int(sum(s.trainable_T.sum() for s in self.samples))

    @property
    def total_reward(self) -> float:
        return float(sum(t.reward for t in self.turns))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the curriculum needs to know of one episode."""

    env: str
    level: int
    success: bool
    turns: int
    oracle_turns: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """The curriculum went up to `level` after step `step`, and why."""

    step: int
    level: int
    reason: str


def tensor_digests(data: bytes | memoryview) -> dict[str, str]:
    """SHA-256 of each tensor's bytes as they stand in a safetensors file, without building a tensor.

    Raises ValueError for what is not a safetensors file.
    """
    view = memoryview(data).cast("B")
    length = int.from_bytes(view[:8], "little")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        spans = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these {view.nbytes} bytes are not a safetensors file: {error}") from error
    body = view[8 + length :]
    return {name: hashlib.sha256(body[start:end]).hexdigest() for name, (start, end) in spans.items()}


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """The student's weights of one version: safetensors bytes behind a Ray object ref, with their `tensor_digests`."""

    version: PolicyVersion
    ref: object
    digests: dict[str, str]


#: The parts of a job that take CPUs and GPUs; `agentrl.cluster.bundles` counts them in this order.
PlacedRole = Literal["learner", "rollout", "environment", "teacher", "curriculum"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the actors of a job run: one Ray placement group, and the bundle indices in it of each role's actors.

    The teacher has no indices: Ray Serve places its replicas itself.
    """

    group: object
    indices: dict[PlacedRole, list[int]]
