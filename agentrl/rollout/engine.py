"""The engine protocol: what plays needs of an inference engine, and nothing more.

Two implementations stand behind it: vLLM (`vllm_engine.py`), and transformers (`transformers_engine.py`) for machines
without vLLM and as the oracle in tests.  Importing this module loads neither.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl.config import TransformersEngine, VllmEngine
from agentrl.types import Failure, PolicyVersion


class EngineError(RuntimeError):
    """The engine cannot answer any more; the process that holds it should end, so that its pool starts a fresh one."""


class RequestRefused(RuntimeError):
    """The engine does not take this one request, and says why; it goes on answering others."""


class WeightError(Failure):
    """Weights that arrived are not the ones that were sent, or could not be put to use; says which tensor."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one turn.  Temperature 0 is greedy.  top-p, top-k and penalties are off, always."""

    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Generated:
    """A sampled turn of n tokens, the stop token included when there was one.

    logprobs:      of each token under the sampling distribution softmax(logits / temperature); greedy: under
    temperature 1. finish:        "stop" when the last token is a stop token, "length" when the turn was cut.
    version_first: policy version when the request was admitted; version_last: when its last token came.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    version_first: PolicyVersion
    version_last: PolicyVersion


class Engine(Protocol):
    """One model that samples and scores.  Safe to call from many coroutines of one event loop."""

    version: PolicyVersion

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generated:
        """Sample one turn behind `prompt_ids`.

        Raises RequestRefused for a prompt that it does not take and EngineError when the engine is broken.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """log p(token_ids[i] | token_ids[:i]) at temperature 1 for i = 1 ... n-1: n - 1 numbers.  Raises as above."""
        ...

    async def load_weights(self, path: str, version: PolicyVersion) -> None:
        """Take a safetensors file's weights (Hugging Face's names) and forget all that is cached under the old ones.

        Requests in flight go on under the new weights.  Raises WeightError when the weights do not fit, and
        EngineError when the engine is broken.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that an engine is built from.

    stop_token_ids: end a turn.  vocabulary: ids of the tokenizer; rows of the output layer beyond them are cut off.
    cores: the CPU cores that are the engine's own; empty on a GPU.
    """

    model_path: str
    dtype: Literal["float32", "bfloat16"]
    max_model_len: int
    engine: VllmEngine | TransformersEngine
    stop_token_ids: tuple[int, ...]
    vocabulary: int
    cores: tuple[int, ...] = ()
    gpus: float = 0.0


def own_cores(index: int, per_worker: float) -> tuple[int, ...]:
    """The cores of the worker with this index: disjoint between workers as long as the machine has enough of them.

    Two busy OpenMP teams on the same cores slow each other down several times over.
    """
    allowed = sorted(os.sched_getaffinity(0))
    count = max(1, int(per_worker))
    return tuple(dict.fromkeys(allowed[(index * count + offset) % len(allowed)] for offset in range(count)))


async def make_engine(settings: EngineSettings) -> Engine:
    """Start the engine that the settings name; seconds to minutes."""
    if isinstance(settings.engine, VllmEngine):
        from agentrl.rollout.vllm_engine import start_vllm

        return await start_vllm(settings)
    from agentrl.rollout.transformers_engine import TransformersSampler

    return TransformersSampler(settings)
