"""A worker's side of the environment actors: calls of many episodes travel together.

While one batch is on its way to an actor, what the other episodes ask of it gathers, and goes as the next batch: no
timer, no waiting when idle, few Ray calls when busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl.rollout.env_actor import EnvCall, EnvFailure, Operation

Send = Callable[[list[EnvCall]], Awaitable[list[Any]]]


class EnvLost(RuntimeError):
    """An episode's environment is gone, and the episode with it.

    actor_gone: the actor that hosted it does not answer; False when a fresh one said that it does not know the episode.
    """

    def __init__(self, actor: int, reason: str, *, actor_gone: bool) -> None:
        super().__init__(f"environment actor {actor} {'is lost' if actor_gone else 'lost an episode'}: {reason}")
        self.actor, self.actor_gone = actor, actor_gone


class EnvBroken(RuntimeError):
    """The environment raised an exception: a failure of the task, not of the student."""


class EnvClient:
    """Calls to one environment actor.  `send` makes one remote call with a batch and returns one answer for each."""

    def __init__(self, actor: int, send: Send) -> None:
        self.actor, self._send = actor, send
        self._waiting: list[tuple[EnvCall, asyncio.Future[Any]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def call(self, key: str, operation: Operation, payload: Any = None) -> Any:
        """The actor's answer.  Raises EnvBroken when the environment failed and EnvLost when it is gone."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((EnvCall(key, operation, payload), future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        answer = await future
        if isinstance(answer, EnvFailure) and answer.lost:
            raise EnvLost(self.actor, answer.reason, actor_gone=False)
        if isinstance(answer, EnvFailure):
            raise EnvBroken(answer.reason)
        return answer

    def forget(self, key: str) -> None:
        """Release an episode's environment; nobody waits for it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # a lost actor has forgotten already
        self._waiting.append((EnvCall(key, "forget"), future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())

    async def answers(self, timeout_s: float) -> bool:
        """Whether the actor answers at all, within that time; it does not while one of its environments hangs."""
        try:
            await asyncio.wait_for(self._send([]), timeout_s)
        except Exception:  # noqa: BLE001 - a timeout, or whatever Ray raises for an actor that is gone
            return False
        return True

    async def _run(self) -> None:
        await asyncio.sleep(0)  # lets every coroutine that is ready put its call into this batch
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                answers = await self._send([one for one, _ in batch])
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, the episodes there are gone
                for _, future in batch:
                    if not future.done():
                        reason = f"{type(error).__name__}: {error}"
                        future.set_exception(EnvLost(self.actor, reason, actor_gone=True))
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
