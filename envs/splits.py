"""Which task an episode is about: the options of `reset`, the two splits, and the task of an index.

A task belongs to the split that the hash of its signature says, so no held-out task can be met in training, whatever
the seeds.  Everything here is a function of its arguments alone and gives the same in every process.
"""

from __future__ import annotations

import functools
import hashlib
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.base import DialogueEnv

LANGUAGES = ("en", "zh")
SPLITS = ("train", "heldout")
HELDOUT_SHARE = 5  # one task in five
MAX_DRAWS = 1000


def stable_hash(text: str) -> int:
    """The same 64-bit number in every process, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()[:8], "big")


def split_of(signature: str) -> str:
    """The split a task belongs to, by its meaning alone."""
    return "heldout" if stable_hash("split:" + signature) % HELDOUT_SHARE == 0 else "train"


@functools.lru_cache(maxsize=20_000)
def find_task(env: type[DialogueEnv], level: int, index: int, split: str) -> dict[str, Any]:
    """The task of an index: the first one drawn from it whose signature belongs to `split`.  Read only: it is kept.

    Raises RuntimeError where a level has so few tasks that none belongs to the split.
    """
    rung = env.levels()[level - 1]
    for attempt in range(MAX_DRAWS):
        rng = random.Random(stable_hash(f"{env.__name__}:{level}:{split}:{index}:{attempt}"))
        task = env.make_task(rung, rng)
        if split_of(task["signature"]) == split:
            return task
    raise RuntimeError(f"no {split} task found for level {level}: its tasks are too few to be split")


def choose(defaults: dict[str, Any], options: dict[str, Any] | None, levels: int) -> dict[str, Any]:
    """The options of an episode over their defaults.  Raises ValueError that names a wrong one and what it may be."""
    chosen = {**defaults, **(options or {})}
    unknown = sorted(set(chosen) - set(defaults))
    if unknown:
        raise ValueError(f"reset: unknown option {unknown[0]!r}; known are {sorted(defaults)}")
    level, task = chosen["level"], chosen["task"]
    if type(level) is not int or not 1 <= level <= levels:
        raise ValueError(f"reset: level must be an integer from 1 to {levels}, not {level!r}")
    if task is not None and (type(task) is not int or task < 0):
        raise ValueError(f"reset: task must be an integer of 0 or more, not {task!r}")
    if chosen["language"] not in LANGUAGES:
        raise ValueError(f"reset: language must be one of {LANGUAGES}, not {chosen['language']!r}")
    if chosen["split"] not in SPLITS:
        raise ValueError(f"reset: split must be one of {SPLITS}, not {chosen['split']!r}")
    return chosen
