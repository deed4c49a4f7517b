"""What a job's environments say of themselves, and what is said of ones that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import JobError, parse_job
from agentrl.rollout.catalogue import read_catalogue


def job(environment: dict[str, Any], **sections: Any):
    models = {"student": {"path": "s"}, "teacher": {"scorer": {"path": "t"}}}
    return parse_job({"name": "t", "environments": [environment], **models, **sections})


def test_it_knows_ladders_and_errors() -> None:
    catalogue = read_catalogue(job({"id": "agentrl/FoodOrder-v0"}))
    assert catalogue.ladders["agentrl/FoodOrder-v0"] == len(catalogue.envs["agentrl/FoodOrder-v0"].levels())
    assert catalogue.errors["agentrl/FoodOrder-v0"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"modules": ["nonsense"]}, "its module 'nonsense' cannot be imported"),
        ({"id": "agentrl/FoodOrdr-v0"}, "environments: cannot make 'agentrl/FoodOrdr-v0'"),
        ({"kwargs": {"compact": 1}}, "unexpected keyword argument 'compact'"),
        ({"id": "CartPole-v1", "kwargs": {}}, "'CartPole-v1' is a CartPoleEnv and no envs.contract.AgentEnv"),
    ],
)
def test_an_environment_that_cannot_be_used_is_a_mistake_in_the_job(environment: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError) as caught:
        read_catalogue(job(environment))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"curriculum": {"start_level": 99}}, "curriculum.start_level has 99"),
        ({"curriculum": {"max_level": 99}}, "curriculum.max_level has 99"),
        ({"evaluation": {"levels": [1, 99]}}, "evaluation.levels has 99"),
    ],
)
def test_a_level_that_no_environment_has_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said + ", but the environments' ladders end at level"):
        read_catalogue(job({"id": "agentrl/FoodOrder-v0"}, **section))


def test_rewards_are_shaped_under_the_discount_of_the_advantages_or_not_at_all() -> None:
    discounted = {"learner": {"loss": {"ppo": {"gamma": 0.9}}}}
    with pytest.raises(JobError, match=r"gamma 1, but learner\.loss\.ppo\.gamma is 0\.9: give .* \{gamma: 0\.9\}"):
        read_catalogue(job({"id": "agentrl/FoodOrder-v0"}, **discounted))
    for kwargs in ({"gamma": 0.9}, {"shaping": False}):
        assert read_catalogue(job({"id": "agentrl/FoodOrder-v0", "kwargs": kwargs}, **discounted)).ladders
