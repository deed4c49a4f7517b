"""A plain sampler on transformers behind the engine protocol: for machines without vLLM, and the oracle in tests.

One request at a time, with a key-value cache, no batching: right before fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.rollout.engine import EngineSettings, Generated, Sampling, WeightError
from agentrl.types import PolicyVersion


class TransformersSampler:
    """See `Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        dtype = getattr(torch, settings.dtype)
        self.device = torch.device("cuda" if settings.gpus > 0 else "cpu")
        model: Any = AutoModelForCausalLM.from_pretrained(settings.model_path, dtype=dtype)
        self.model = model.to(self.device).eval()
        self._vocabulary = settings.vocabulary
        self._stops = frozenset(settings.stop_token_ids)
        self._one_at_a_time = asyncio.Lock()
        self.version = PolicyVersion(0)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generated:
        async with self._one_at_a_time:
            token_ids, logprobs = await asyncio.to_thread(self._generate, list(prompt_ids), sampling)
            finish = "stop" if token_ids[-1] in self._stops else "length"
            return Generated(token_ids, logprobs, finish, self.version, self.version)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._score, list(token_ids))

    async def load_weights(self, path: str, version: PolicyVersion) -> None:
        async with self._one_at_a_time:
            missing, unexpected = self.model.load_state_dict(load_file(path), strict=False)
            tied = set(self.model.all_tied_weights_keys or ())
            wrong = [*(name for name in missing if name not in tied), *unexpected]
            if wrong:
                raise WeightError(f"the weights of version {version} do not fit the model: {wrong[0]!r} is amiss")
            self.version = version

    async def close(self) -> None:
        return None

    @torch.inference_mode()
    def _generate(self, prompt_ids: list[int], sampling: Sampling) -> tuple[list[int], list[float]]:
        generator = torch.Generator().manual_seed(sampling.seed)
        token_ids: list[int] = []
        logprobs: list[float] = []
        step, cache = torch.tensor([prompt_ids], device=self.device), None
        while len(token_ids) < sampling.max_tokens and not (token_ids and token_ids[-1] in self._stops):
            output = self.model(step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits_V = output.logits[0, -1, : self._vocabulary].float().cpu()
            logprobs_V = torch.log_softmax(logits_V / (sampling.temperature or 1.0), dim=-1)
            if sampling.temperature == 0:
                token = int(logits_V.argmax())
            else:
                token = int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
            token_ids.append(token)
            logprobs.append(float(logprobs_V[token]))
            step = torch.tensor([[token]], device=self.device)
        return token_ids, logprobs

    @torch.inference_mode()
    def _score(self, token_ids: list[int]) -> list[float]:
        logits_T_V = (
            self.model(torch.tensor([token_ids], device=self.device)).logits[0, :-1, : self._vocabulary].float()
        )
        targets_T = torch.tensor(token_ids[1:], device=self.device)
        return torch.log_softmax(logits_T_V, dim=-1).gather(1, targets_T[:, None])[:, 0].tolist()
