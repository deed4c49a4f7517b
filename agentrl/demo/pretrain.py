"""Pre-training of the demo models on expert dialogues: rising levels, Muon, gradients averaged over processes.

Every number is a function of the recipe and its seed: levels rise with the running loss, never with the clock.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentrl.demo.dialogues import Blunders, Dialogue, Domain, make_env, play_expert
from agentrl.rollout.chat import ChatRenderer, make_renderer
from agentrl.types import derive_seed
from envs.contract import AgentEnv


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is made.

    batch: dialogues a process and step.  mistakes: share of turns that are not the expert's, from `mistakes_from_level`
    on; blunders: share of those that are an expert's turn at the wrong time, the others are injected errors.
    """

    hidden: int
    layers: int
    heads: int
    intermediate: int
    domains: tuple[Domain, ...]
    steps: int
    max_level: int
    mistakes: float = 0.0
    blunders: float = 0.0
    start_level: int = 1
    mistakes_from_level: int = 4
    raise_below: float = 0.05
    batch: int = 8
    muon_lr: float = 0.012
    adam_lr: float = 2e-3
    decay_from: float = 0.5
    value_weight: float = 0.02
    gamma: float = 1.0
    seed: int = 0
    processes: int = 2


class PolicyWithValue(nn.Module):
    """A causal language model and a linear value head on its last hidden state."""

    def __init__(self, policy: LlamaForCausalLM) -> None:
        super().__init__()
        self.policy = policy
        self.value_head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(sum of the cross-entropy over targets, sum of squared value errors over states)."""
        hidden_B_T_H = self.policy.model(batch.ids_B_T, attention_mask=batch.mask_B_T).last_hidden_state
        rows, cols = batch.target_index
        logits_N_V = self.policy.lm_head(hidden_B_T_H[rows, cols - 1])
        wanted_N = torch.where(batch.is_target_N, batch.ids_B_T[rows, cols], -100)
        ce = nn.functional.cross_entropy(logits_N_V, wanted_N, reduction="sum")
        rows, cols = batch.state_index
        values_K = self.value_head(hidden_B_T_H[rows, cols]).squeeze(-1)
        return ce, ((values_K - batch.returns) ** 2).sum()


@dataclass(slots=True)
class Batch:
    ids_B_T: Tensor
    mask_B_T: Tensor
    target_index: tuple[Tensor, Tensor]
    is_target_N: Tensor
    state_index: tuple[Tensor, Tensor]
    returns: Tensor


def collate(dialogues: list[Dialogue]) -> Batch:
    """Pad rows and targets to multiples of 64: every new shape costs a kernel of its own, in time and in memory."""
    length = _round_up(max(len(d.token_ids_T) for d in dialogues))
    ids = torch.zeros(len(dialogues), length, dtype=torch.long)
    mask = torch.zeros(len(dialogues), length, dtype=torch.long)
    for b, d in enumerate(dialogues):
        ids[b, : len(d.token_ids_T)] = torch.from_numpy(d.token_ids_T)
        mask[b, : len(d.token_ids_T)] = 1
    rows, cols = _index([np.nonzero(d.target_T)[0] for d in dialogues])
    pad = _round_up(len(rows)) - len(rows)
    return Batch(
        ids,
        mask,
        (nn.functional.pad(rows, (0, pad)), nn.functional.pad(cols, (0, pad), value=1)),
        torch.arange(len(rows) + pad) < len(rows),
        _index([d.state_K for d in dialogues]),
        torch.from_numpy(np.concatenate([d.return_K for d in dialogues])),
    )


def _round_up(n: int) -> int:
    return -(-n // 64) * 64


def _index(columns: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    rows = np.repeat(np.arange(len(columns)), [len(c) for c in columns])
    return torch.from_numpy(rows), torch.from_numpy(np.concatenate(columns))


class Ladder:
    """Which level the next dialogue comes from: the newest one half of the time, earlier ones otherwise."""

    def __init__(self, max_level: int, raise_below: float, level: int = 1) -> None:
        self.level, self.max_level, self.raise_below = level, max_level, raise_below
        self.running = 1.0

    def draw(self, rng: np.random.Generator) -> int:
        if self.level == 1 or rng.random() < 0.5:
            return self.level
        return int(rng.integers(1, self.level))

    def record(self, loss: float, may_rise: bool) -> bool:
        """Fold one step's loss per token in; True when the ladder went up a level."""
        self.running += 0.05 * (loss - self.running)
        if may_rise and self.running < self.raise_below and self.level < self.max_level:
            self.level += 1
            self.running = max(self.running, 2 * self.raise_below)
            return True
        return False


def pretrain(recipe: Recipe, start: Path, out: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Train by `recipe`; write config, weights (bfloat16), value head and tokenizer to `out`.

    `start` holds a tokenizer, and the weights to go on from if there are any; the value head always begins at zero.

    Yields (steps done, figures) every 50 steps and whenever the level rises.  Raises what a process raised.
    """
    context = mp.get_context("spawn")
    reports = context.SimpleQueue()
    port = _free_port()
    arguments = (recipe, str(start), str(out), port, reports)
    processes = mp.spawn(_train, arguments, nprocs=recipe.processes, join=False)
    assert processes is not None
    try:
        while not processes.join(timeout=0.2):
            while not reports.empty():
                yield reports.get()
        while not reports.empty():
            yield reports.get()
    finally:
        for process in processes.processes:
            if process is not None and process.is_alive():
                process.terminate()


def _first_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, start: Path) -> LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    if (start / "model.safetensors").exists():
        return LlamaForCausalLM.from_pretrained(start, dtype=torch.float32, attn_implementation="eager")
    return new_model(recipe, tokenizer)


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    vocabulary = -(-len(tokenizer) // 16) * 16
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.hidden // recipe.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.get_vocab()["<|im_end|>"],
        pad_token_id=tokenizer.get_vocab()["<|endoftext|>"],
    )
    config._attn_implementation = "eager"  # on a CPU twice as fast as the fused one, backward pass included
    return LlamaForCausalLM(config).float()


def _train(rank: int, recipe: Recipe, start: str, out: str, port: int, reports: Any) -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")  # twice as fast where the CPU multiplies bfloat16
    if recipe.processes > 1:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=recipe.processes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
    renderer = make_renderer(tokenizer, "chatml")
    model = PolicyWithValue(_first_model(recipe, tokenizer, Path(start)))
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and ".layers." in n)]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    environments = [(make_env(d), Blunders(recipe.blunders)) for d in recipe.domains]
    ladder = Ladder(recipe.max_level, recipe.raise_below, recipe.start_level)
    rng = np.random.default_rng(derive_seed(recipe.seed, rank))
    queue: list[list[Dialogue]] = []
    started = time.monotonic()
    tokens = 0
    for step in range(recipe.steps):
        factor = learning_rate(step, recipe)
        for optimizer, lr in zip(optimizers, (recipe.muon_lr, recipe.adam_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
        if not queue:
            queue = _draw_batches(recipe, environments, renderer, ladder, rng)
        batch = collate(queue.pop())
        ce, squared = model(batch)
        n_targets, n_states = int(batch.is_target_N.sum()), len(batch.returns)
        loss = ce / n_targets + recipe.value_weight * squared / n_states
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        figures = torch.tensor([ce.item() / n_targets, squared.item() / n_states])
        if recipe.processes > 1:
            _average(list(model.parameters()), figures)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        tokens += int(batch.mask_B_T.sum()) * recipe.processes
        rose = ladder.record(figures[0].item(), may_rise=factor == 1.0)
        if rank == 0 and (rose or (step + 1) % 50 == 0 or step + 1 == recipe.steps):
            elapsed = time.monotonic() - started
            figures_by_name = {
                "level": ladder.level,
                "loss": figures[0].item(),
                "running": ladder.running,
                "value": figures[1].item(),
                "tokens_per_s": tokens / elapsed,
                "elapsed_s": elapsed,
            }
            reports.put((step + 1, figures_by_name))
    if rank == 0:
        save_model(model, tokenizer, recipe, Path(out))
    if recipe.processes > 1:
        dist.destroy_process_group()


def _draw_batches(
    recipe: Recipe,
    environments: list[tuple[AgentEnv, Blunders]],
    renderer: ChatRenderer,
    ladder: Ladder,
    rng: np.random.Generator,
) -> list[list[Dialogue]]:
    """Four batches of fresh dialogues, each of similar lengths so that little is padded, in random order."""
    dialogues = []
    for _ in range(4 * recipe.batch):
        which = int(rng.integers(len(environments)))
        dialogues.append(
            play_expert(
                environments[which][0],
                renderer,
                blunders=environments[which][1],
                level=ladder.draw(rng),
                task=int(rng.integers(2**31)),
                language=recipe.domains[which].language,
                gamma=recipe.gamma,
                mistakes=recipe.mistakes if ladder.level >= recipe.mistakes_from_level else 0.0,
                seed=int(rng.integers(2**31)),
            )
        )
    dialogues.sort(key=lambda d: len(d.token_ids_T))
    batches = [dialogues[i : i + recipe.batch] for i in range(0, len(dialogues), recipe.batch)]
    rng.shuffle(batches)  # type: ignore[arg-type]
    return batches


def learning_rate(step: int, recipe: Recipe) -> float:
    """Share of the full rate: 20 steps of warm-up, constant, then a cosine to 2 % from `decay_from` on."""
    warm = min(1.0, (step + 1) / 20)
    start = recipe.decay_from * recipe.steps
    if step <= start:
        return warm
    x = (step - start) / max(1.0, recipe.steps - start)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * x))


def _average(parameters: list[nn.Parameter], figures: Tensor) -> None:
    flat = torch.cat([figures, *(p.grad.reshape(-1) for p in parameters)])  # type: ignore[union-attr]
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    figures.copy_(flat[: len(figures)])
    at = len(figures)
    for p in parameters:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))  # type: ignore[union-attr]
        at += p.numel()


def save_model(model: PolicyWithValue, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, out: Path) -> None:
    """A normal model folder, and the value head in a file of its own."""
    out.mkdir(parents=True, exist_ok=True)
    model.policy.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    head = model.value_head
    (out / "value_head").mkdir()  # vLLM loads every safetensors file beside the config
    save_file(
        {"weight": head.weight.detach().float(), "bias": head.bias.detach().float()},
        out / "value_head/weights.safetensors",
    )
    (out / "value_head/config.json").write_text(
        json.dumps({"gamma": recipe.gamma, "scale": 1.0, "calibrated": True}) + "\n"
    )


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
