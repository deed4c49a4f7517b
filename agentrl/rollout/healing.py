"""Actors that may die, around RLlib's FaultTolerantActorManager: who is well, who came back, and what happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.rllib.utils.actor_manager import CallResult, FaultTolerantActorManager

from agentrl.types import Failure

logger = logging.getLogger(__name__)
# It logs each late episode of a dead actor as an error of its own; the pool says once what happened.
logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 0.5


class PoolError(Failure):
    """A pool of actors cannot go on: says which, what was waited for and what was last heard."""


class HealedActors:
    """Actors of one kind, by id from 0.

    `on_restored(id)` brings an actor that Ray has started afresh up to date; a PoolError keeps it out of service.
    """

    def __init__(self, kind: str, actors: Sequence[Any], on_restored: Callable[[int], None] | None = None) -> None:
        self.kind, self._on_restored = kind, on_restored
        self.manager = FaultTolerantActorManager(list(actors))
        self.events: list[str] = []
        self._lost_at: dict[int, float] = {}
        self._last_word: dict[int, str] = {}
        self._probed_at = 0.0

    @property
    def healthy(self) -> list[int]:
        return self.manager.healthy_actor_ids()

    def lose(self, actor: int, reason: str, *, kill: bool = False) -> None:
        """Take an actor out of service until it answers again; `kill` ends a hung process, so that Ray restarts it."""
        if kill:
            ray.kill(self.manager.actors()[actor], no_restart=False)
        if self.manager.is_actor_healthy(actor):
            self.manager.set_actor_state(actor, healthy=False)
        if actor not in self._lost_at:
            self._lost_at[actor] = time.monotonic()
            self._say(f"{self.kind} {actor} lost: {reason}")
        self._last_word[actor] = reason

    def heal(self) -> list[int]:
        """Ask the lost ones, now and then, whether they are back; the ids of those that are."""
        self._notice()
        if not self._lost_at or time.monotonic() - self._probed_at < PROBE_EVERY_S:
            return []
        back: list[int] = []
        for actor in self.manager.probe_unhealthy_actors(timeout_seconds=PROBE_TIMEOUT_S, mark_healthy=True):
            try:
                if self._on_restored is not None:
                    self._on_restored(actor)
            except PoolError as error:
                self.lose(actor, str(error))
                continue
            self._say(f"{self.kind} {actor} healed after {time.monotonic() - self._lost_at.pop(actor, 0.0):.1f} s")
            back.append(actor)
        self._probed_at = time.monotonic()
        return back

    def wait(self, count: int, timeout_s: float) -> None:
        """Until `count` actors are in service.  Raises PoolError."""
        deadline = time.monotonic() + timeout_s
        while len(self.healthy) < count:
            if time.monotonic() > deadline:
                words = "; ".join(f"{i}: {word}" for i, word in sorted(self._last_word.items()))
                raise PoolError(
                    f"waited {timeout_s:.0f} s for {count} {self.kind}s, {len(self.healthy)} answer; "
                    f"last heard: {words or 'nothing'}"
                )
            self.heal()
            time.sleep(0.05)

    def call(self, actors: Sequence[int], method: str, timeout_s: float, **kwargs: Any) -> dict[int, Any]:
        """Call a method on each of the actors and return the answers by id; one that does not answer is lost."""
        if not actors:  # the manager takes an empty list for "all of them"
            return {}
        results = self.manager.foreach_actor(
            method, kwargs=kwargs, remote_actor_ids=list(actors), timeout_seconds=timeout_s, healthy_only=False
        )
        answers: dict[int, Any] = {}
        silent = set(actors)
        result: CallResult
        for result in results:  # type: ignore[assignment]
            silent.discard(result.actor_id)
            if result.ok:
                answers[result.actor_id] = result.get()
            else:
                self.lose(result.actor_id, _short(result.get()))
        for actor in silent:
            self.lose(actor, f"did not answer {method} within {timeout_s:.0f} s", kill=True)
        return answers

    def tell(self, actor: int, method: str, *args: Any) -> None:
        """Call a method of one actor, whose answer nobody waits for."""
        getattr(self.manager.actors()[actor], method).remote(*args)

    def take_events(self) -> list[str]:
        events, self.events = self.events, []
        return events

    def _notice(self) -> None:
        """Actors that the manager took out of service by itself, after an error of a call."""
        for actor in set(self.manager.actor_ids()) - set(self.healthy) - set(self._lost_at):
            self.lose(actor, "a call failed")

    def _say(self, event: str) -> None:
        logger.warning(event)
        self.events.append(event)


def _short(error: object) -> str:
    error = getattr(error, "cause", None) or error  # Ray wraps what an actor raised, and colours it
    text = f"{type(error).__name__}: {error}"
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}")[:300]
