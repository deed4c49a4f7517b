"""Hands episodes to workers and environment actors until every one of them has a record.

A killed environment actor or worker costs its own episodes only: they are played again under the next attempt, with
a new seed, and whatever a lost attempt still sends is dropped by its tag.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.rollout.env_actor import EnvCall
from agentrl.rollout.episode import empty_trajectory, episode_key
from agentrl.rollout.healing import HealedActors, _short
from agentrl.rollout.worker import Lost
from agentrl.types import EpisodeSpec, Trajectory, derive_seed

POLL_S = 0.05
#: patience beyond the worker's own episode timeout before the worker itself is taken for hung
GRACE_S = 30.0

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class _Flight:
    index: int
    spec: EpisodeSpec
    worker: int
    env_actor: int
    deadline: float


class Dispatch:
    """One `collect`.  `per_worker` episodes at most are in flight on one worker."""

    def __init__(
        self,
        workers: HealedActors,
        env_actors: HealedActors,
        *,
        per_worker: int,
        max_attempts: int,
        episode_timeout_s: float,
        patience_s: float,
    ) -> None:
        self.workers, self.env_actors = workers, env_actors
        self.per_worker, self.max_attempts = per_worker, max_attempts
        self.episode_timeout_s, self.patience_s = episode_timeout_s, patience_s
        self.flights: dict[str, _Flight] = {}
        self.waiting: deque[tuple[int, EpisodeSpec]] = deque()
        self.records: dict[int, Trajectory] = {}

    def run(self, specs: Sequence[EpisodeSpec], on_progress: Progress | None = None) -> list[Trajectory]:
        """The records, in the order of the specs.  Raises PoolError when no actor comes back."""
        keys = Counter(episode_key(spec) for spec in specs)
        twice = [key for key, count in keys.items() if count > 1]
        if twice:
            raise ValueError(f"episode {twice[0]} stands twice in one collect; episode ids must differ")
        self.waiting.extend(enumerate(specs))
        said = -1
        while len(self.records) < len(specs):
            self._heal()
            self._send()
            self._receive()
            self._lose_patience()
            if on_progress is not None and len(self.records) != said:
                said = len(self.records)
                on_progress(said, len(specs))
        return [self.records[index] for index in range(len(specs))]

    def _heal(self) -> None:
        # First what a lost worker was playing: once it is back, nothing tells its lost episodes from live ones.
        for key, flight in list(self.flights.items()):
            if flight.worker not in self.workers.healthy:
                self._retry(key, f"rollout worker {flight.worker} was lost")
        for group in (self.workers, self.env_actors):
            group.heal()

    def _send(self) -> None:
        if self.waiting and not self.flights:
            self.workers.wait(1, self.patience_s)
            self.env_actors.wait(1, self.patience_s)
        busy = Counter(flight.worker for flight in self.flights.values())
        hosting = Counter(flight.env_actor for flight in self.flights.values())
        while self.waiting:
            free = [worker for worker in self.workers.healthy if busy[worker] < self.per_worker]
            if not free or not self.env_actors.healthy:
                return
            worker = min(free, key=lambda w: busy[w])
            env_actor = min(self.env_actors.healthy, key=lambda e: hosting[e])
            index, spec = self.waiting.popleft()
            key = episode_key(spec)
            sent = self.workers.manager.foreach_actor_async(
                "play", tag=key, kwargs={"spec": spec, "env_actor": env_actor}, remote_actor_ids=[worker]
            )
            if not sent:
                self.waiting.appendleft((index, spec))
                return
            busy[worker] += 1
            hosting[env_actor] += 1
            deadline = time.monotonic() + self.episode_timeout_s + GRACE_S
            self.flights[key] = _Flight(index, spec, worker, env_actor, deadline)

    def _receive(self) -> None:
        tags = list(self.flights)
        if not tags:
            time.sleep(POLL_S)
            return
        for result in self.workers.manager.fetch_ready_async_reqs(tags=tags, timeout_seconds=POLL_S):
            key = str(result.tag)  # type: ignore[attr-defined]
            flight = self.flights.get(key)
            if flight is None:
                continue
            if not result.ok:
                reason = _short(result.get())
                self.workers.lose(flight.worker, reason)
                self._retry(key, reason)
                continue
            answer = result.get()
            if isinstance(answer, Trajectory):
                del self.flights[key]
                self.records[flight.index] = answer
            elif isinstance(answer, Lost):
                if answer.env_actor is not None:
                    self.env_actors.lose(answer.env_actor, answer.reason, kill=answer.hung)
                if answer.engine:
                    self.workers.lose(flight.worker, answer.reason)
                self._retry(key, answer.reason)

    def _lose_patience(self) -> None:
        now = time.monotonic()
        for flight in [flight for flight in self.flights.values() if flight.deadline < now]:
            waited = self.episode_timeout_s + GRACE_S
            reason = f"waited {waited:.0f} s for episode {flight.spec.episode_id}; its worker does not even time out"
            self.workers.lose(flight.worker, reason, kill=True)

    def _retry(self, key: str, reason: str) -> None:
        flight = self.flights.pop(key)
        self.env_actors.tell(flight.env_actor, "call", [EnvCall(key, "forget")])  # a killed worker could not
        spec, attempt = flight.spec, flight.spec.attempt + 1
        if attempt >= self.max_attempts:
            self.records[flight.index] = empty_trajectory(spec, f"{reason} (attempt {attempt} of {self.max_attempts})")
            return
        seed = derive_seed(spec.seed, "attempt", attempt)
        self.waiting.appendleft((flight.index, dataclasses.replace(spec, attempt=attempt, seed=seed)))
