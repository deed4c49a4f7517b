"""How much of an engine's speed is left when it plays episodes: rollout against plain batched generation.

    python -m benchmarks.rollout --model runs/student --episodes 64

Both are measured in one run, on the same engines, with the same prompts and the same number of tokens a turn: first the
pool plays the episodes, then each engine generates every turn again from its recorded prompt, all at once, with no
environment between (`replay`).  Prints generated tokens a second of both and their ratio; saves them as JSON with
the hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from agentrl.config import parse_job
from agentrl.local_ray import local_ray
from agentrl.rollout.engine import Sampling
from agentrl.types import EpisodeSpec, Trajectory
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 1800


def job_for(model: str, workers: int, turn_tokens: int) -> Any:
    environment = {"id": "agentrl/FoodOrder-v0", "kwargs": {"compact_tools": True}}
    return parse_job(
        {
            "name": "benchmark",
            "environments": [environment],
            "student": {"path": model, "max_model_len": 1024},
            "teacher": {"scorer": {"path": model}},
            "rollout": {"workers": workers, "env_actors": 1, "max_turn_tokens": turn_tokens, "cpus_per_env_actor": 0.5},
        }
    )


def specs_for(prefix: str, episodes: int, level: int, turns: int) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(f"{prefix}{i}", "agentrl/FoodOrder-v0", level=level, task=i, seed=i, max_turns=turns)
        for i in range(episodes)
    ]


def turns_of(records: list[Trajectory]) -> list[list[tuple[list[int], int]]]:
    """For each episode its turns as (prompt ids, tokens generated)."""
    return [[(r.samples[t.sample].token_ids_T[: t.start].tolist(), t.end - t.start) for t in r.turns] for r in records]


def replay(pool: Any, episodes: list[list[tuple[list[int], int]]]) -> float:
    """Generate every recorded turn again, all at once, first turns first; seconds."""
    import ray

    ids = pool.workers.healthy
    shares = [episodes[index :: len(ids)] for index in range(len(ids))]

    def run(share: list[list[tuple[list[int], int]]]) -> Any:
        async def generate(worker: Any) -> int:
            engine, _ = await worker._ready()
            stops, engine._stops = engine._stops, []  # the recorded length, whatever is sampled
            try:
                # What the episodes left in the prefix cache would make the second run's prompts free.
                if not await engine._llm.reset_prefix_cache():
                    raise RuntimeError("vLLM did not reset its prefix cache")
                turns = range(max(map(len, share)))
                order = [episode[turn] for turn in turns for episode in share if turn < len(episode)]
                made = await asyncio.gather(*(engine.generate(p, Sampling(1.0, n, 0)) for p, n in order))
                return sum(len(one.token_ids) for one in made)
            finally:
                engine._stops = stops

        return generate

    actors = pool.workers.manager.actors()
    started = time.monotonic()
    refs = [actors[worker].apply.remote(run(share)) for worker, share in zip(ids, shares, strict=True)]
    generated = sum(ray.get(refs, timeout=TIMEOUT_S))
    wall_s = time.monotonic() - started
    expected = sum(n for episode in episodes for _, n in episode)
    if generated != expected:
        raise RuntimeError(f"the replay generated {generated} tokens, the episodes {expected}: not the same work")
    return wall_s


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """One row a repeat: tokens/s of the rollout, of the plain generation, and their ratio."""
    from agentrl.rollout.pool import RolloutPool  # imports ray, which reads its settings at import: after local_ray

    pool = RolloutPool(job_for(args.model, args.workers, args.turn_tokens))
    rows: list[dict[str, float]] = []
    try:
        pool.collect(specs_for("warm", 8, args.level, 2))
        for repeat in range(args.repeats):
            records = pool.collect(specs_for(f"r{repeat}-", args.episodes, args.level, args.turns))
            tokens, rollout_s = pool.stats.generated_tokens, pool.stats.wall_s
            replay_s = replay(pool, turns_of(records))
            row = {"tokens": tokens, "rollout": tokens / rollout_s, "plain": tokens / replay_s}
            rows.append({**row, "ratio": row["rollout"] / row["plain"]})
            print({key: round(value, 3) for key, value in rows[-1].items()}, flush=True)
    finally:
        pool.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="rollout beside plain batched generation")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--turn-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    ran_on = machine()
    with local_ray(num_cpus=args.workers + 1):
        rows = measure(args)
    best = sorted(rows, key=lambda row: row["ratio"])[(len(rows) - 1) // 2]
    result = {
        "what": "generated tokens/s, rollout beside plain batched generation",
        "median": best,
        "repeats": rows,
        **vars(args),
        "model": Path(args.model).name,
        "machine": ran_on,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"rollout-{os.cpu_count()}cpu.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {best['ratio']:.2f} ({best['rollout']:.0f} of {best['plain']:.0f} tokens/s), saved {path}")


if __name__ == "__main__":
    main()
