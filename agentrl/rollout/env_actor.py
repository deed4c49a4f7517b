"""A Ray actor that hosts many gymnasium environments, one an episode, and answers batches of calls.

A worker sends what its episodes ask for in one Ray call (see `env_client.py`): a call a turn would cost more than
the turn.
An exception inside an environment becomes an `EnvFailure` in that episode's place in the answer, never a reward, and
does not disturb the other episodes.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import gymnasium
import ray

from agentrl.config import Environment, JobError
from agentrl.types import EpisodeSpec
from envs.contract import AgentEnv, AssistantMessage, Label, Message

Operation = Literal["reset", "step", "inject", "oracle", "forget"]


@dataclass(frozen=True, slots=True)
class EnvCall:
    """One thing to do with one episode's environment.  `key` is the episode's: its id and attempt."""

    key: str
    operation: Operation
    payload: Any = None


@dataclass(frozen=True, slots=True)
class EnvOpening:
    messages: tuple[Message, ...]
    tools: list[dict]
    signature: str
    oracle_turns: int
    state_hash: str


@dataclass(frozen=True, slots=True)
class EnvStep:
    messages: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool
    reward_parts: dict[str, float]
    label: Label
    success: bool
    steps_left: int
    first_error: bool
    state_hash: str


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """The environment itself broke: what it was doing and what it said.

    `lost`: there is no such environment here, because the actor was restarted since; nothing is said of the task.
    """

    reason: str
    lost: bool = False


class _NotHere(LookupError):
    """An episode whose environment died with an earlier process of the actor."""


def import_environments(environments: Iterable[Environment]) -> None:
    """Import the modules that register the environments.  Raises ImportError that names environment and module."""
    for environment in environments:
        for module in environment.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ImportError(
                    f"environment {environment.id!r}: its module {module!r} cannot be imported ({error}); "
                    "check environments.modules in the job file and that the package is installed on every node"
                ) from error


def make_env(environment: Environment) -> AgentEnv:
    """One environment of a job.  Raises JobError that says what gymnasium said."""
    import_environments([environment])
    try:
        made = gymnasium.make(environment.id, disable_env_checker=True, **environment.kwargs)
    except (gymnasium.error.Error, TypeError, ValueError) as error:
        raise JobError(f"environments: cannot make {environment.id!r} with {environment.kwargs}: {error}") from error
    return cast(AgentEnv, made.unwrapped)


class EnvHost:
    """The environments of one actor.  A plain class, so that tests need no Ray."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        import_environments(environments)
        self._configs = {environment.id: environment for environment in environments}
        self._live: dict[str, AgentEnv] = {}
        self._spare: dict[str, list[AgentEnv]] = {}
        self._ids: dict[str, str] = {}

    def call(self, calls: Sequence[EnvCall]) -> list[Any]:
        """One answer for each call, in order: EnvOpening, EnvStep, AssistantMessage, Advice, None, or EnvFailure."""
        return [self._answer(one) for one in calls]

    def _answer(self, one: EnvCall) -> Any:
        handlers: dict[Operation, Callable[[str, Any], Any]] = {
            "reset": self._reset,
            "step": self._step,
            "inject": self._inject,
            "oracle": lambda key, _: self._env(key).oracle(),
            "forget": lambda key, _: self._forget(key),
        }
        try:
            return handlers[one.operation](one.key, one.payload)
        except _NotHere as error:
            return EnvFailure(str(error), lost=True)
        except Exception as error:  # noqa: BLE001 - whatever a user's environment raises is that episode's failure, and is recorded
            self._forget(one.key, reuse=False)
            return EnvFailure(f"environment, {one.operation}: {type(error).__name__}: {error}")

    def _reset(self, key: str, spec: EpisodeSpec) -> EnvOpening:
        self._forget(key)
        env = self._make(spec.env)
        options = {"level": spec.level, "task": spec.task, "language": spec.language, "split": spec.split}
        messages, info = env.reset(seed=spec.seed, options=options)
        self._live[key], self._ids[key] = env, spec.env
        steps = env.oracle().steps_left
        return EnvOpening(messages, info["tools"], info["signature"], steps, env.state_hash())

    def _step(self, key: str, action: AssistantMessage) -> EnvStep:
        env = self._env(key)
        messages, reward, terminated, truncated, info = env.step(action)
        return EnvStep(
            messages,
            float(reward),
            terminated,
            truncated,
            info["reward_parts"],
            info["label"],
            info["success"],
            info["steps_left"],
            info["first_error"],
            env.state_hash(),
        )

    def _inject(self, key: str, payload: tuple[str, int]) -> AssistantMessage:
        error, seed = payload
        return self._env(key).inject(error, random.Random(seed))

    def _env(self, key: str) -> AgentEnv:
        if key not in self._live:
            raise _NotHere(f"episode {key} has no environment here: it was never reset, or the actor was restarted")
        return self._live[key]

    def _make(self, env_id: str) -> AgentEnv:
        if self._spare.get(env_id):
            return self._spare[env_id].pop()
        if env_id not in self._configs:
            raise KeyError(f"environment {env_id!r} is not in the job; the job has {sorted(self._configs)}")
        return make_env(self._configs[env_id])

    def _forget(self, key: str, *, reuse: bool = True) -> None:
        """`reuse` is for an environment that still does what it should: one that raised is dropped."""
        env, env_id = self._live.pop(key, None), self._ids.pop(key, "")
        if env is not None and reuse:
            self._spare.setdefault(env_id, []).append(env)


@ray.remote
class EnvActor(EnvHost):
    """`EnvHost` in a process of its own, in the shape that RLlib's FaultTolerantActorManager heals."""

    def ping(self) -> str:
        return "pong"

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return func(self, *args, **kwargs)
