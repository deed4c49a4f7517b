"""What a teacher is: the seam behind which any model can stand.

`api.py` turns requests into `ScoreItem`s and hands them to one `Scorer`; it does not know what answers.  A new kind of
teacher is a class with these methods, a section in `agentrl.config` with its own `type`, and a case in `make_scorer`.

Shapes: T tokens of a sequence, K turns, n positions (the tokens of all turns of a sequence, in order), k support,
m ids that the caller named for a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentrl.config import HfTeacher
from agentrl.teacher.identity import TeacherIdentity


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """One sequence to score: log q(. | tokens before) at every token of its turns.

    turns_K_2:     (start, end) of each turn, ascending, apart, 1 <= start < end <= T; start - 1 is the turn's state.
    named_ids_n_m: ids whose log-probability the caller wants at each position, -1 pads; None: none named.
    temperature:   divides the logits before the softmax.
    """

    token_ids_T: NDArray[np.int32]
    turns_K_2: NDArray[np.int32]
    named_ids_n_m: NDArray[np.int32] | None
    top_k: int
    temperature: float

    @property
    def positions_n(self) -> NDArray[np.int64]:
        """The index of every token to score; the logits that score it stand one before."""
        return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in self.turns_K_2])


@dataclass(frozen=True, slots=True)
class ItemScores:
    """A scorer's answer for one item.

    support_ids_n_k:      the top k by falling probability, then the token itself, then the named ids; each id once,
                          -1 pads.
    support_logprobs_n_k: log q of each, -inf where padded.
    tail_logprobs_n:      log of the mass outside of the support, -inf when it is the whole vocabulary.
    values_K:             value of the state before each turn, None for a teacher without a value head.
    """

    support_ids_n_k: NDArray[np.int32]
    support_logprobs_n_k: NDArray[np.float32]
    tail_logprobs_n: NDArray[np.float32]
    values_K: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A reply of the teacher's own: the sampled ids, the stop token included when `finish` is "stop"."""

    token_ids: list[int]
    finish: str


@runtime_checkable
class Scorer(Protocol):
    """Override these."""

    identity: TeacherIdentity
    tokenizer: Any
    """a transformers tokenizer; renders messages and shows tokens as text"""

    async def score(self, items: list[ScoreItem]) -> list[ItemScores]:
        """Scores in the order of `items`, which `api.py` has checked: nothing in them can be out of range."""
        ...

    async def sample(self, token_ids: list[int], max_tokens: int, temperature: float, seed: int) -> Sampled:
        """Continue `token_ids` until a stop token; temperature 0 is greedy."""
        ...

    async def check(self) -> None:
        """Return when a token has just been through the model; raise when none will."""
        ...

    def close(self) -> None:
        """Give threads, memory and connections back."""
        ...


def make_scorer(config: HfTeacher, device: str = "cpu", threads: int | None = None) -> Scorer:
    """The scorer that a job's `teacher.scorer` section describes, loaded and ready.

    threads: of a CPU's matrix products; None leaves the process's setting.
    """
    from agentrl.teacher.hf_scorer import HfScorer

    return HfScorer.load(
        config.path, dtype=config.dtype, batch_tokens=config.batch_tokens, device=device, threads=threads
    )
