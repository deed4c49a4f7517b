"""A job around the tiny model, and a clerk's desk: a small environment that can be told to break."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import Job, parse_job
from agentrl.types import EpisodeSpec


@pytest.fixture(scope="session")
def make_job(tiny_model_dir):
    """A job around the tiny model; keyword arguments are merged into its rollout section."""

    def make(**rollout: Any) -> Job:
        return parse_job(
            {
                "name": "test",
                "environments": [
                    {"id": "agentrl/FoodOrder-v0", "kwargs": {"compact_tools": True}},
                    {"id": "agentrl/SearchCalcQA-v0", "kwargs": {"compact_tools": True}},
                ],
                "student": {"path": str(tiny_model_dir), "max_model_len": 1024},
                "teacher": {"scorer": {"path": str(tiny_model_dir)}},
                "rollout": {"max_turn_tokens": 8, "cpus_per_worker": 0.5, "cpus_per_env_actor": 0.5, **rollout},
            }
        )

    return make


@pytest.fixture(scope="session")
def make_specs():
    """n episodes of level 1 with three turns each."""

    def make(n: int, prefix: str = "e", **changes: Any) -> list[EpisodeSpec]:
        settings: dict[str, Any] = {"env": "agentrl/FoodOrder-v0", "level": 1, "max_turns": 3, **changes}
        return [EpisodeSpec(episode_id=f"{prefix}{i}", task=i, seed=1000 + i, **settings) for i in range(n)]

    return make
