"""What a job's environments say of themselves: their ladders, the errors they can be made to state, their openings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config import Environment, Job, JobError
from agentrl.rollout.env_actor import make_env
from envs.base import DialogueEnv
from envs.contract import AgentEnv

if TYPE_CHECKING:
    from agentrl.rollout.chat import ChatRenderer


@dataclass(frozen=True, slots=True)
class Catalogue:
    """By environment id: the number of levels, the names that `inject` takes, and one environment to ask."""

    ladders: dict[str, int]
    errors: dict[str, tuple[str, ...]]
    envs: dict[str, AgentEnv]

    def heldout_signature(self, env_id: str, level: int, task: int) -> str:
        """What a held-out task means; equal for task numbers that name the same task."""
        _, info = self.envs[env_id].reset(seed=0, options={"level": level, "task": task, "split": "heldout"})
        return info["signature"]


def read_catalogue(job: Job) -> Catalogue:
    """Raises JobError for a module or id that is not there, arguments that do not fit or a level that no ladder has.

    And for an environment that shapes its rewards under another discount than the advantages': the shaping would not
    cancel out, and change which policy is best (Ng et al. 1999).
    """
    made = {environment.id: _make(environment) for environment in job.environments}
    gamma = job.learner.loss.ppo.gamma
    for name, env in made.items():
        rewards = env.rewards if isinstance(env, DialogueEnv) else None
        if rewards is not None and rewards.shaping and rewards.gamma != gamma:
            raise JobError(
                f"environments: {name} shapes its rewards with gamma {rewards.gamma:g}, but learner.loss.ppo.gamma is "
                f"{gamma:g}: give the environment kwargs: {{gamma: {gamma:g}}}, or {{shaping: false}}"
            )
    ladders = {name: len(env.levels()) for name, env in made.items()}
    highest = max(ladders.values())
    asked = {
        "curriculum.start_level": [job.curriculum.start_level],
        "curriculum.max_level": [job.curriculum.max_level or 1],
        "evaluation.levels": job.evaluation.levels or [],
    }
    for key, levels in asked.items():
        if too_high := [level for level in levels if level > highest]:
            raise JobError(f"{key} has {too_high[0]}, but the environments' ladders end at level {highest}")
    return Catalogue(ladders, {name: tuple(env.errors) for name, env in made.items()}, made)


def _make(environment: Environment) -> AgentEnv:
    try:
        env = make_env(environment)
    except ImportError as error:
        raise JobError(str(error)) from error
    if not isinstance(env, AgentEnv):
        raise JobError(
            f"environments: {environment.id!r} is a {type(env).__name__} and no envs.contract.AgentEnv, to which an "
            "agent talks in messages; docs/environments.md shows how to write one"
        )
    return env


def openings(job: Job, catalogue: Catalogue, chat: ChatRenderer, each: int) -> Iterator[list[int]]:
    """The prompts of the first turns of `each` training tasks of every environment, at the curriculum's start level."""
    for environment in job.environments:
        env = catalogue.envs[environment.id]
        level = min(job.curriculum.start_level, catalogue.ladders[environment.id])
        for task in range(each):
            options = {"level": level, "task": task, "language": environment.language, "split": "train"}
            messages, info = env.reset(seed=task, options=options)
            yield chat.render_opening(messages, info["tools"])
