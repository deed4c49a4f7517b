"""What is found out about environments before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import Job, JobError, parse_job
from agentrl.rollout.catalogue import read_catalogue


def job(kwargs: dict[str, Any], gamma: float) -> Job:
    return parse_job(
        {
            "name": "test",
            "environments": [{"id": "agentrl/FoodOrder-v0", "kwargs": kwargs}],
            "student": {"path": "s"},
            "teacher": {"scorer": {"path": "t"}},
            "learner": {"loss": {"ppo": {"gamma": gamma}}},
        }
    )


def test_rewards_are_shaped_under_the_discount_of_the_advantages_or_not_at_all():
    with pytest.raises(JobError, match=r"gamma 1, but learner\.loss\.ppo\.gamma is 0\.9: give .* \{gamma: 0\.9\}"):
        read_catalogue(job({}, 0.9))
    for kwargs in ({"gamma": 0.9}, {"shaping": False}):
        assert read_catalogue(job(kwargs, 0.9)).ladders == {"agentrl/FoodOrder-v0": 7}
