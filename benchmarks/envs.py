"""Steps a second of each environment under expert play, one `oracle()` call a step, on one thread.

    python -m benchmarks.envs [--seconds 2]

Writes `benchmarks/results/envs.json`: wall and CPU steps a second for each environment and level, and the machine.
Every task is new, as in training; what tasks share (the search indexes of a level's 256 layouts) is built before, by
playing other tasks.  On a busy machine the wall figure says little; the CPU figure counts only the time that this
process ran.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium

import envs  # noqa: F401  registers the names
from benchmarks.machine import machine
from envs.base import DialogueEnv

NAMES = ("agentrl/FoodOrder-v0", "agentrl/SearchCalcQA-v0")
TARGET_STEPS_PER_S = 5_000
WARM_UP = 1000  # episodes: about 98 % of 256 layouts are met
RESULTS = Path(__file__).parent / "results" / "envs.json"


def play(env: DialogueEnv, level: int, seeds: range) -> int:
    """The expert plays one episode a seed; how many steps that took."""
    steps = 0
    for seed in seeds:
        env.reset(seed=seed, options={"level": level})
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.oracle().action)
            steps += 1
            done = terminated or truncated
    return steps


def measure(env: DialogueEnv, level: int, seconds: float) -> dict[str, float]:
    """Plays new tasks of a level for some seconds of CPU time; resets count, as they do in training."""
    play(env, level, range(WARM_UP))
    steps, episodes = 0, 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < seconds:
        first = WARM_UP + episodes
        steps += play(env, level, range(first, first + 10))
        episodes += 10
    return {
        "steps_per_cpu_s": round(steps / (time.process_time() - cpu)),
        "steps_per_s": round(steps / (time.perf_counter() - wall)),
        "turns_per_episode": round(steps / episodes, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds for each level")
    seconds = parser.parse_args().seconds
    ran_on = machine()
    results: dict[str, Any] = {}
    for name in NAMES:
        env = gymnasium.make(name, disable_env_checker=True).unwrapped
        assert isinstance(env, DialogueEnv)
        rows = {level.index: measure(env, level.index, seconds) for level in env.levels()}
        mean = sum(row["steps_per_cpu_s"] for row in rows.values()) / len(rows)
        results[name] = {"levels": rows, "mean_steps_per_cpu_s": round(mean), "target": TARGET_STEPS_PER_S}
        print(f"{name}: {mean:,.0f} steps a CPU second (target {TARGET_STEPS_PER_S:,})")
        for level, row in rows.items():
            print(f"  level {level}: " + ", ".join(f"{key} {value:,}" for key, value in row.items()))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": ran_on, "environments": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
