"""Peak memory and time of the output layer in chunks, against the plain version that keeps all logits.

    python -m benchmarks.learner                          # a tenth of the vocabulary of 150k, for a small CPU
    python -m benchmarks.learner --vocabulary 150000      # the full case: the plain version needs about 20 GiB in fp32

Each version runs in its own process, forward and backward, on N tokens of a batch whose losses need the token's
log-probability and those of 64 support ids.  The peak is that of the process (CPU) or of the allocator (GPU), less what
stood there before the first logit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from agentrl.learner.output_layer import Scores, score
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
GIB = 2.0**30


def plain(hidden_N_H: torch.Tensor, weight_V_H: torch.Tensor, ids_N: torch.Tensor, support_N_k: torch.Tensor) -> Scores:
    """What one writes first: every logit, cast to fp32, through log_softmax."""
    logprobs_N_V = torch.log_softmax((hidden_N_H @ weight_V_H.T).float(), dim=-1)
    return Scores(logprobs_N_V.gather(1, ids_N[:, None])[:, 0], logprobs_N_V.gather(1, support_N_k), None)


def chunked(
    hidden_N_H: torch.Tensor, weight_V_H: torch.Tensor, ids_N: torch.Tensor, support_N_k: torch.Tensor
) -> Scores:
    ones_N = torch.ones(len(ids_N), device=ids_N.device)
    return score(hidden_N_H, weight_V_H, None, ids_N, support_N_k, ones_N, 1.0, one_temperature=True)


VERSIONS = {"plain": plain, "chunked": chunked}


def measure(version: str, args: argparse.Namespace) -> dict[str, float]:
    """Run one version once; GiB above the inputs, and seconds."""
    torch.manual_seed(0)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    hidden_N_H = torch.randn(args.tokens, args.hidden, dtype=dtype, device=device, requires_grad=True)
    weight_V_H = (torch.randn(args.vocabulary, args.hidden, dtype=dtype, device=device) / 32).requires_grad_()
    ids_N = torch.randint(args.vocabulary, (args.tokens,), device=device)
    support_N_k = torch.randint(args.vocabulary, (args.tokens, 64), device=device)
    before = peak_bytes(device)
    started = time.perf_counter()
    scores = VERSIONS[version](hidden_N_H, weight_V_H, ids_N, support_N_k)
    loss = -scores.token_N.mean() + scores.support_N_k.exp().sum(-1).mean()
    loss.backward()
    norm = float(hidden_N_H.grad.float().norm())
    seconds = time.perf_counter() - started
    return {"gib": (peak_bytes(device) - before) / GIB, "seconds": seconds, "loss": loss.item(), "gradient_norm": norm}


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as file:  # VmHWM, in KiB: unlike ru_maxrss, this process's own
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=15_000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=list(VERSIONS), help="run one version in this process and print JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    result: dict[str, Any] = {**vars(args), "machine": machine(), "versions": {}}
    print(f"{args.tokens} tokens × {args.vocabulary} ids, hidden {args.hidden}, {args.dtype}, {args.device}")
    for version in VERSIONS:
        command = [sys.executable, "-m", "benchmarks.learner", *sys.argv[1:], "--only", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"  {version:<8} did not finish (exit code {done.returncode}): out of memory?")
            continue
        found = result["versions"][version] = json.loads(done.stdout)
        print(
            f"  {version:<8} {found['gib']:6.2f} GiB {found['seconds']:7.1f} s   "
            f"loss {found['loss']:.6f}   gradient norm {found['gradient_norm']:.6f}"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "learner.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
