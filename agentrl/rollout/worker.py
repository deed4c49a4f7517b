"""A Ray actor with one engine that plays many episodes at once, one coroutine each: no episode waits for another.

Calls come from the pool, through RLlib's FaultTolerantActorManager (`ping`, `apply`).  That manager takes every
exception for a dead actor, so what goes wrong with one episode comes back as a value (`Lost`).  When the engine
breaks, the actor ends its own process, and Ray starts a fresh one; health means that the engine generates a token.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from agentrl.rollout.chat import ChatRenderer, make_renderer
from agentrl.rollout.engine import Engine, EngineError, EngineSettings, Sampling, WeightError, make_engine, own_cores
from agentrl.rollout.env_client import EnvClient, EnvLost
from agentrl.rollout.episode import Limits, episode_key, play_episode
from agentrl.rollout.weight_file import first_difference, remove_weight_files, write_weight_file
from agentrl.types import EpisodeSpec, PolicyVersion, Trajectory, vocabulary_size

logger = logging.getLogger(__name__)

#: long enough for the answer that says why to leave the process first
EXIT_DELAY_S = 0.5
#: for an environment actor to answer nothing in particular, once an episode has waited for it in vain
ENV_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt that came to nothing through no fault of the student, and who is to blame."""

    reason: str
    env_actor: int | None = None
    engine: bool = False
    hung: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is built from: small and picklable, since a restart builds it again.

    `env_actors` are names of Ray actors: handles would lie in the object store, which may not outlive a restart.
    """

    engine: EngineSettings
    renderer: str
    cpus: float
    limits: Limits
    episode_timeout_s: float
    env_actors: tuple[str, ...]


@ray.remote
class RolloutWorker:
    """See the module."""

    def __init__(self, index: int, settings: WorkerSettings) -> None:
        self.index, self.settings = index, settings
        self._envs = [EnvClient(i, _sender(name)) for i, name in enumerate(settings.env_actors)]
        self._starting: asyncio.Task[tuple[Engine, ChatRenderer]] | None = None
        self._broken: str | None = None
        self._doubt: asyncio.Task[None] | None = None

    async def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = func(self, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def ping(self) -> str:
        """Generates a token.  A process that lives proves nothing about its engine."""
        engine, chat = await self._ready()
        with self._ends_when_broken():
            await engine.generate(chat.generation_prompt_ids, Sampling(temperature=0.0, max_tokens=1, seed=0))
        return "pong"

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def pid(self) -> int:
        return os.getpid()

    async def play(self, spec: EpisodeSpec, env_actor: int) -> Trajectory | Lost:
        """Play one episode with the environment on that actor."""
        timeout_s = self.settings.episode_timeout_s
        waits_for = ["the engine to start"]
        envs = self._envs[env_actor]
        try:
            engine, chat = await self._ready()
            async with asyncio.timeout(timeout_s):
                return await play_episode(spec, engine, chat, envs, self.settings.limits, waits_for)
        except TimeoutError:
            reason = f"episode {spec.episode_id} took over {timeout_s:g} s; it waited for {waits_for[0]}"
            if "environment" in waits_for[0]:
                hung = not await envs.answers(ENV_ANSWER_S)  # or else it was this worker that was slow
                return Lost(reason, env_actor, hung=True) if hung else Lost(reason)
            self._doubt = asyncio.create_task(self._check_engine(timeout_s))
            return Lost(reason)
        except EnvLost as error:
            return Lost(str(error), env_actor)
        except EngineError as error:
            self._end(str(error))
            return Lost(f"engine of rollout worker {self.index}: {error}", engine=True)
        except Exception as error:
            logger.exception("episode %s broke", spec.episode_id)
            return Lost(f"playing episode {spec.episode_id}: {type(error).__name__}: {error}")
        finally:
            envs.forget(episode_key(spec))

    async def score(self, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
        """For each list of n ids the n - 1 log-probabilities of ids[1:] at temperature 1."""
        engine, _ = await self._ready()
        with self._ends_when_broken():
            return [np.asarray(await engine.score(ids), np.float32) for ids in prompts]

    async def write_weights(
        self, data: bytes, version: PolicyVersion, digests: Mapping[str, str], name: str
    ) -> str | WeightError:
        """Write the weights for every engine of this node and return the file's path."""
        try:
            return await asyncio.to_thread(write_weight_file, data, version, digests, name=name)
        except WeightError as error:
            return error

    async def first_difference(self, data: bytes, digests: Mapping[str, str]) -> str | None:
        """The first tensor of the bytes, as they arrive here, that differs from its digest."""
        return await asyncio.to_thread(first_difference, data, digests)

    async def load_weights(self, path: str, version: PolicyVersion) -> PolicyVersion | WeightError:
        engine, _ = await self._ready()
        try:
            with self._ends_when_broken():
                await engine.load_weights(path, version)
        except WeightError as error:
            self._end(str(error))  # an engine with half its weights must not play
            return error
        return engine.version

    def remove_weights(self, name: str) -> None:
        remove_weight_files(name)

    async def close(self) -> None:
        if self._starting is not None and self._starting.done() and self._starting.exception() is None:
            await self._starting.result()[0].close()

    async def _ready(self) -> tuple[Engine, ChatRenderer]:
        if self._broken is not None:
            raise EngineError(self._broken)
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(self._starting)
        except Exception as error:
            self._end(f"the engine did not start: {type(error).__name__}: {error}")
            raise

    async def _start(self) -> tuple[Engine, ChatRenderer]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.settings.engine.model_path)
        chat = make_renderer(tokenizer, self.settings.renderer)
        cores = own_cores(self.index, self.settings.cpus) if self.settings.engine.gpus == 0 else ()
        settings = dataclasses.replace(
            self.settings.engine,
            stop_token_ids=chat.stop_token_ids,
            vocabulary=vocabulary_size(tokenizer),
            cores=cores,
        )
        return await make_engine(settings), chat

    async def _check_engine(self, timeout_s: float) -> None:
        """A slow engine still makes one token in the time that an episode may take; a hung one does not."""
        try:
            await asyncio.wait_for(self.ping(), timeout_s)
        except TimeoutError:
            self._end(f"waited {timeout_s:g} s for the engine to generate one token")

    @contextmanager
    def _ends_when_broken(self) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            self._end(str(error))
            raise

    def _end(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
            logger.error("rollout worker %d ends its process: %s", self.index, reason)
            asyncio.get_running_loop().call_later(EXIT_DELAY_S, os._exit, 1)


def _sender(name: str) -> Callable[[list[Any]], Any]:
    handles: list[Any] = []

    async def send(calls: list[Any]) -> list[Any]:
        if not handles:
            handles.append(await asyncio.to_thread(ray.get_actor, name))
        return await handles[0].call.remote(calls)

    return send
