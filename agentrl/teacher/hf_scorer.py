"""A transformers causal language model as teacher, with a value head beside it if there is one.

One forward pass over a whole trajectory gives every turn: a causal model's hidden state at i - 1 is the state before
token i.  Logits exist only where a position is scored, in chunks, so that [B, T, V] never does.  The folder may hold
`value_head/weights.safetensors` (`weight` [1, H], `bias` [1]) and `value_head/config.json` (`gamma`, `scale`,
`calibrated`); beside the model's own files, other loaders would take them for a part of it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from agentrl.teacher.batcher import TokenBatcher
from agentrl.teacher.identity import TeacherIdentity, ValueCalibration, token_fields
from agentrl.teacher.scorer import ItemScores, Sampled, ScoreItem
from agentrl.teacher.support import support_of
from agentrl.teacher.wire import pad_columns
from agentrl.types import Failure

VALUE_HEAD_WEIGHTS, VALUE_HEAD_CONFIG = "value_head/weights.safetensors", "value_head/config.json"
#: floats of one chunk of logits (256 MiB in fp32)
CHUNK_FLOATS = 2**26
#: a pass that ended well this short a time ago proves that the model works
FRESH_S = 5.0


class TeacherModelError(Failure):
    """A model folder that cannot be a teacher: what is wrong with it, and what to do."""


class HfScorer:
    """See `agentrl.teacher.scorer.Scorer`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        identity: TeacherIdentity,
        value_head: tuple[torch.Tensor, torch.Tensor] | None,
        batch_tokens: int,
    ) -> None:
        self.identity = identity
        self.tokenizer = tokenizer
        self._model = model.eval()
        self._backbone = model.base_model
        self._output = model.get_output_embeddings()
        self._value_head = value_head
        self._stop_ids = _stop_ids(model, tokenizer)
        self._check_output_layer()
        self._batcher = TokenBatcher(self._score_pack, batch_tokens)

    @classmethod
    def load(
        cls, path: str | Path, dtype: str, batch_tokens: int, device: str = "cpu", threads: int | None = None
    ) -> HfScorer:
        """Load the model in folder `path`.  Raises TeacherModelError for one that cannot teach."""
        folder = Path(path)
        if not (folder / "config.json").is_file():
            raise TeacherModelError(f"teacher.scorer.path {str(path)!r} is not a model folder: it has no config.json")
        if threads is not None:
            torch.set_num_threads(threads)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), use_safetensors=True)
        model.to(device)
        rows = model.get_output_embeddings().weight.shape[0]
        fields = token_fields(tokenizer, _context_length(model, folder))
        if fields["vocabulary"] > rows:
            raise TeacherModelError(
                f"{folder}: the tokenizer knows {fields['vocabulary']} ids, the output layer has {rows} rows; "
                "they do not belong together"
            )
        value_head, calibration = _load_value_head(folder, model.config.get_text_config().hidden_size, device)
        identity = TeacherIdentity(
            **fields,
            name=folder.resolve().name,
            weights_sha256=_weights_digest(folder),
            padded_vocabulary=rows,
            dtype=dtype,
            value=calibration,
        )
        return cls(model, tokenizer, identity, value_head, batch_tokens)

    async def score(self, items: list[ScoreItem]) -> list[ItemScores]:
        return await self._batcher.score(items)

    async def sample(self, token_ids: list[int], max_tokens: int, temperature: float, seed: int) -> Sampled:
        return await self._batcher.call(lambda: self._sample(token_ids, max_tokens, temperature, seed))

    async def check(self) -> None:
        if time.monotonic() - self._batcher.last_success_s > FRESH_S:
            await self._batcher.call(lambda: self._score_pack([_TOKEN]))

    def close(self) -> None:
        self._batcher.close()

    @torch.inference_mode()
    def _score_pack(self, items: list[ScoreItem]) -> list[ItemScores]:
        """One forward pass over `items`, padded on the right: a causal model never looks there, no mask is needed."""
        device = self._output.weight.device
        ids_B_T = np.zeros((len(items), max(len(i.token_ids_T) for i in items)), dtype=np.int64)
        for row, item in enumerate(items):
            ids_B_T[row, : len(item.token_ids_T)] = item.token_ids_T
        hidden_B_T_H = self._backbone(input_ids=torch.from_numpy(ids_B_T).to(device), use_cache=False).last_hidden_state

        groups: dict[tuple, list[int]] = defaultdict(list)
        for row, item in enumerate(items):
            width = None if item.named_ids_n_m is None else item.named_ids_n_m.shape[1]
            groups[item.top_k, item.temperature, width].append(row)
        answers: list[ItemScores | None] = [None] * len(items)
        for (top_k, temperature, _), rows in groups.items():
            positions = [items[row].positions_n for row in rows]
            hidden_n_H = torch.cat(
                [
                    hidden_B_T_H[row, torch.from_numpy(at - 1).to(device)]
                    for row, at in zip(rows, positions, strict=True)
                ]
            )
            tokens_n = np.concatenate([ids_B_T[row, at] for row, at in zip(rows, positions, strict=True)])
            named = [ids for row in rows if (ids := items[row].named_ids_n_m) is not None]
            named_n_m = np.concatenate(named).astype(np.int64) if named else None
            ids_n_k, logprobs_n_k, tails_n = self._supports(hidden_n_H, tokens_n, named_n_m, top_k, temperature)
            ends = np.cumsum([len(at) for at in positions])[:-1]
            for row, ids, logprobs, tails in zip(
                rows, *(np.split(array, ends) for array in (ids_n_k, logprobs_n_k, tails_n)), strict=True
            ):
                k = int((ids >= 0).sum(1).max())  # an answer's shape must not depend on who shared the pass
                answers[row] = ItemScores(
                    ids[:, :k], logprobs[:, :k], tails, self._values(hidden_B_T_H[row], items[row])
                )
        return answers  # type: ignore[return-value]  every row is in one group

    def _supports(
        self,
        hidden_n_H: torch.Tensor,
        tokens_n: np.ndarray,
        named_n_m: np.ndarray | None,
        top_k: int,
        temperature: float,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The supports of many positions, one chunk of logits after another, in arrays as wide as the widest chunk."""
        chunk = max(1, CHUNK_FLOATS // self.identity.padded_vocabulary)
        parts = []
        for start in range(0, len(hidden_n_H), chunk):
            logits_n_V = self._logits(hidden_n_H[start : start + chunk])
            chosen_n = torch.from_numpy(tokens_n[start : start + chunk]).to(logits_n_V.device)
            asked = (
                None if named_n_m is None else torch.from_numpy(named_n_m[start : start + chunk]).to(chosen_n.device)
            )
            ids, logprobs, tails = support_of(logits_n_V, chosen_n, asked, top_k, temperature)
            parts.append((ids.to(torch.int32).cpu().numpy(), logprobs.cpu().numpy(), tails.cpu().numpy()))
        width = max(ids.shape[1] for ids, _, _ in parts)
        return (
            np.concatenate([pad_columns(ids, width, -1) for ids, _, _ in parts]),
            np.concatenate([pad_columns(logprobs, width, -np.inf) for _, logprobs, _ in parts]),
            np.concatenate([tails for _, _, tails in parts]),
        )

    def _logits(self, hidden_n_H: torch.Tensor) -> torch.Tensor:
        """Logits over the true vocabulary: rows that only pad the output layer have no say in the softmax."""
        return self._output(hidden_n_H)[:, : self.identity.vocabulary]

    def _values(self, hidden_T_H: torch.Tensor, item: ScoreItem) -> np.ndarray | None:
        if self._value_head is None:
            return None
        weight_1_H, bias_1 = self._value_head
        states_K = torch.from_numpy(item.turns_K_2[:, 0].astype(np.int64) - 1).to(hidden_T_H.device)
        return torch.nn.functional.linear(hidden_T_H[states_K].float(), weight_1_H, bias_1)[:, 0].cpu().numpy()

    @torch.inference_mode()
    def _sample(self, token_ids: list[int], max_tokens: int, temperature: float, seed: int) -> Sampled:
        device = self._output.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        cache = DynamicCache(config=self._model.config)
        ids_1_T = torch.tensor([token_ids], device=device)
        sampled: list[int] = []
        while len(sampled) < max_tokens:
            hidden = self._backbone(input_ids=ids_1_T, past_key_values=cache, use_cache=True).last_hidden_state
            logits_1_V = self._logits(hidden[:, -1]).float()
            if temperature == 0:
                ids_1_T = logits_1_V.argmax(-1, keepdim=True)
            else:
                ids_1_T = torch.multinomial((logits_1_V / temperature).softmax(-1), 1, generator=generator)
            sampled.append(int(ids_1_T))
            if sampled[-1] in self._stop_ids:
                return Sampled(sampled, "stop")
        return Sampled(sampled, "length")

    @torch.inference_mode()
    def _check_output_layer(self) -> None:
        """Refuse a model that does more to its hidden states than the output layer (a soft cap, a logit scale)."""
        ids_1_T = torch.arange(min(8, self.identity.vocabulary), device=self._output.weight.device)[None]
        theirs = self._model(input_ids=ids_1_T, use_cache=False).logits[0, :, : self.identity.vocabulary].float()
        ours = self._logits(self._backbone(input_ids=ids_1_T, use_cache=False).last_hidden_state[0]).float()
        gap = float((theirs - ours).abs().max())
        if not gap <= 1e-2 * max(1.0, float(theirs.abs().max())):
            raise TeacherModelError(
                f"{self.identity.name}: {type(self._model).__name__} changes its logits after the output layer "
                f"(by up to {gap:.3g}); this scorer reads the output layer directly and would answer wrongly"
            )


#: What a health check scores: one token after another, which every model has.
_TOKEN = ScoreItem(np.zeros(2, np.int32), np.array([[1, 2]], np.int32), None, top_k=1, temperature=1.0)


def _context_length(model: Any, folder: Path) -> int:
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int):
        raise TeacherModelError(f"{folder}: config.json says no max_position_embeddings, the context length is unknown")
    return length


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model.generation_config, "eos_token_id", None)
    stops = generation if isinstance(generation, list) else [generation]
    return frozenset(i for i in [*stops, tokenizer.eos_token_id] if i is not None)


def _load_value_head(
    folder: Path, hidden: int, device: str
) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, ValueCalibration | None]:
    file, about = folder / VALUE_HEAD_WEIGHTS, folder / VALUE_HEAD_CONFIG
    if not file.is_file():
        return None, None
    tensors = load_file(file, device=device)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {"weight": (1, hidden), "bias": (1,)}:
        raise TeacherModelError(f"{file} must hold weight (1, {hidden}) and bias (1,), it holds {shapes}")
    try:
        text = about.read_text(encoding="utf-8") if about.is_file() else "{}"
        calibration = ValueCalibration.model_validate(json.loads(text))
    except (ValidationError, json.JSONDecodeError) as error:
        raise TeacherModelError(f'{about} must be {{"gamma": …, "scale": …, "calibrated": …}}: {error}') from error
    return (tensors["weight"].float(), tensors["bias"].float()), calibration


def _weights_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob(VALUE_HEAD_WEIGHTS)]):
        with file.open("rb") as stream:
            digest.update(file.relative_to(folder).as_posix().encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
