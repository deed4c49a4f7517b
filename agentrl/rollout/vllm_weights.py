"""Inside vLLM's worker process: take new weights from a safetensors file, and cut the vocabulary to the tokenizer's.

vLLM imports this class by name in its child process and mixes it into its worker.  `model.load_weights` alone would
fail on
CPU, where the weights have been packed away; `reload_weights` unpacks, loads and packs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers.logits_processor import LogitsProcessor


class WeightReader:
    """vLLM's worker extension."""

    reload_weights: Any
    model_config: Any
    model_runner: Any

    def cut_vocabulary(self, size: int) -> None:
        """Neither sample nor normalise over rows of the output layer from `size` on."""
        layers = [module for module in self.model_runner.model.modules() if isinstance(module, LogitsProcessor)]
        if not layers:
            raise ValueError(f"{type(self.model_runner.model).__name__} has no LogitsProcessor to cut")
        for layer in layers:
            layer.org_vocab_size = min(layer.org_vocab_size, size)

    def read_weights(self, path: str) -> int:
        """Load every tensor of the file (Hugging Face's names) and return how many there were."""
        names: list[str] = []
        with safe_open(path, framework="pt", device="cpu") as file:

            def tensors() -> Iterator[tuple[str, torch.Tensor]]:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    names.append(name)
                    yield name, file.get_tensor(name)
                tied = self._tied_source(set(file.keys()))
                if tied is not None:
                    # The CPU path packs the output layer on its own; left out, it would keep the old weights silently.
                    yield "lm_head.weight", file.get_tensor(tied)

            self.reload_weights(weights_iterator=tensors(), is_checkpoint_format=True)
        return len(names)

    def _tied_source(self, names: set[str]) -> str | None:
        config = self.model_config.hf_text_config
        if not getattr(config, "tie_word_embeddings", False) or "lm_head.weight" in names:
            return None
        sources = [name for name in names if name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))]
        if len(sources) != 1:
            raise ValueError(
                f"the model ties its output layer to its embeddings, but the weights hold {len(sources)} tensors "
                "that may be the embeddings; put lm_head.weight into the export"
            )
        return sources[0]
