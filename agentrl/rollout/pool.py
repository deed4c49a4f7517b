"""The rollout pool, as the loop sees it: collect episodes, take new weights, score a few prompts, say what was healed.

    pool = RolloutPool(job, model_path=..., placement=...)
    trajectories = pool.collect(specs)
    pool.sync_weights(snapshot)

It lives in the driver and owns two groups of Ray actors, rollout workers and environment actors, both healed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.config import Job, VllmEngine
from agentrl.rollout.dispatch import Dispatch, Progress
from agentrl.rollout.engine import EngineSettings, WeightError
from agentrl.rollout.env_actor import EnvActor, import_environments
from agentrl.rollout.episode import Limits
from agentrl.rollout.healing import HealedActors, PoolError
from agentrl.rollout.worker import RolloutWorker, WorkerSettings
from agentrl.types import EpisodeSpec, Placement, Trajectory, WeightSnapshot

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 900.0
SYNC_TIMEOUT_S = 600.0
SCORE_TIMEOUT_S = 120.0

Check = Callable[[Sequence[int]], None]
"""Given the workers that have taken the weights: raises when what they answer is not what those weights say."""


@dataclass(frozen=True, slots=True)
class CollectStats:
    """Of the last `collect`."""

    episodes: int
    failed: int
    generated_tokens: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.wall_s if self.wall_s else 0.0


class RolloutPool:
    """Raises PoolError when the actors do not start, or do not come back, in time."""

    def __init__(
        self,
        job: Job,
        *,
        model_path: str | None = None,
        placement: Placement | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        import_environments(job.environments)  # a wrong module name is said here, not by a dying actor
        self._job, self._start_timeout_s = job, start_timeout_s
        self._name = secrets.token_hex(4)
        self._snapshot: WeightSnapshot | None = None
        self._check: Check | None = None
        self.stats = CollectStats(0, 0, 0, 0.0)
        env_actors = [self._env_actor(index, placement) for index in range(job.rollout.env_actors)]
        workers = [
            self._worker(index, model_path or job.student.path, placement) for index in range(job.rollout.workers)
        ]
        self.env_actors = HealedActors("environment actor", env_actors)
        self.workers = HealedActors("rollout worker", workers, on_restored=self._bring_up_to_date)
        try:
            self._await_start(self.env_actors)
            self._await_start(self.workers)
        except BaseException:
            self.close()
            raise

    def collect(self, specs: Sequence[EpisodeSpec], on_progress: Progress | None = None) -> list[Trajectory]:
        """Play every episode and return the records in the order of the specs.

        `on_progress(done, total)` is called as they come in.  An episode that is lost `rollout.max_attempts` times
        comes back as a trajectory with `failure` set.
        """
        started = time.monotonic()
        rollout = self._job.rollout
        dispatch = Dispatch(
            self.workers,
            self.env_actors,
            per_worker=rollout.engine.max_num_seqs if isinstance(rollout.engine, VllmEngine) else 8,
            max_attempts=rollout.max_attempts,
            episode_timeout_s=rollout.episode_timeout_s,
            patience_s=self._start_timeout_s,
        )
        records = dispatch.run(specs, on_progress)
        self.stats = CollectStats(
            len(records),
            sum(record.failure is not None for record in records),
            sum(record.n_generated for record in records),
            time.monotonic() - started,
        )
        return records

    def sync_weights(self, snapshot: WeightSnapshot, check: Check | None = None) -> None:
        """Put the weights into every engine and check them; engines that are down get both when they are back.

        Returns when one engine at least has passed.  Raises WeightError naming the first tensor that did not arrive as
        it was sent, whatever `check` raises, and PoolError when no engine comes back in time.
        """
        self._snapshot, self._check = snapshot, check
        current = self.workers.heal()
        behind = [worker for worker in self.workers.healthy if worker not in current]
        self._push(behind, snapshot)
        self._check_healthy(behind)
        self.workers.wait(1, self._start_timeout_s)

    def score(self, prompts: Sequence[Sequence[int]], workers: Sequence[int]) -> dict[int, list[NDArray[np.float32]]]:
        """For each worker, and each prompt of n ids, the n - 1 log-probabilities of ids[1:] at temperature 1.

        A worker that does not answer is lost, and left out.
        """
        plain = [list(map(int, ids)) for ids in prompts]
        return self.workers.call(workers, "score", SCORE_TIMEOUT_S, prompts=plain)

    def first_difference(self, worker: int, snapshot: WeightSnapshot) -> str | None:
        """The first tensor that differs from its digest in the snapshot as that worker receives it, or None."""
        answers = self.workers.call(
            [worker], "first_difference", SYNC_TIMEOUT_S, data=snapshot.ref, digests=snapshot.digests
        )
        return answers.get(worker)

    def take_events(self) -> list[str]:
        """What was lost and healed since the last call, one line each."""
        return [*self.workers.take_events(), *self.env_actors.take_events()]

    def close(self) -> None:
        """End every actor, engines first."""
        self.workers.call(self.workers.healthy, "remove_weights", 30.0, name=self._name)
        self.workers.call(self.workers.healthy, "close", 30.0)
        for group in (self.workers, self.env_actors):
            group.manager.clear()

    def _push(self, workers: Sequence[int], snapshot: WeightSnapshot) -> None:
        nodes: dict[str, list[int]] = {}
        for worker, node in self.workers.call(workers, "node", SCORE_TIMEOUT_S).items():
            nodes.setdefault(node, []).append(worker)
        for members in nodes.values():
            self._push_to_node(members, snapshot)

    def _push_to_node(self, members: list[int], snapshot: WeightSnapshot) -> None:
        """One file for all engines of a node, removed when they have read it."""
        for writer in members:
            wrote = self.workers.call(
                [writer],
                "write_weights",
                SYNC_TIMEOUT_S,
                data=snapshot.ref,
                version=snapshot.version,
                digests=snapshot.digests,
                name=self._name,
            )
            if writer in wrote:
                break
        else:
            return  # every worker of the node died meanwhile; the weights await their return
        path = _or_raise(wrote[writer])
        try:
            readers = [worker for worker in members if worker in self.workers.healthy]
            loaded = self.workers.call(readers, "load_weights", SYNC_TIMEOUT_S, path=path, version=snapshot.version)
            for answer in loaded.values():
                _or_raise(answer)
        finally:
            self.workers.call(
                [w for w in members if w in self.workers.healthy][:1],
                "remove_weights",
                SCORE_TIMEOUT_S,
                name=self._name,
            )

    def _check_healthy(self, workers: Sequence[int]) -> None:
        loaded = [worker for worker in workers if worker in self.workers.healthy]
        if self._check is not None and loaded:
            self._check(loaded)

    def _bring_up_to_date(self, worker: int) -> None:
        if self._snapshot is not None:
            try:
                self._push([worker], self._snapshot)
            except WeightError as error:
                raise PoolError(f"rollout worker {worker} could not take the current weights: {error}") from error
            self._check_healthy([worker])
        if not self.workers.manager.is_actor_healthy(worker):
            raise PoolError(f"rollout worker {worker} died again while it took the current weights")

    def _await_start(self, group: HealedActors) -> None:
        group.call(group.healthy, "ping", self._start_timeout_s)
        group.wait(len(group.manager.actor_ids()), 1.0)

    def _env_actor(self, index: int, placement: Placement | None) -> Any:
        job = self._job
        options = _place(placement, "environment", index)
        options["name"] = self._env_name(index)
        actor = EnvActor.options(num_cpus=job.rollout.cpus_per_env_actor, max_restarts=-1, **options)  # type: ignore[attr-defined]
        return actor.remote(job.environments)

    def _worker(self, index: int, model_path: str, placement: Placement | None) -> Any:
        student, rollout = self._job.student, self._job.rollout
        engine = EngineSettings(
            model_path=model_path,
            dtype=student.dtype,
            max_model_len=student.max_model_len,
            engine=rollout.engine,
            stop_token_ids=(),  # these two the worker reads from the tokenizer
            vocabulary=0,
            gpus=rollout.gpus_per_worker,
        )
        limits = Limits(rollout.max_turn_tokens, student.max_model_len)
        settings = WorkerSettings(
            engine,
            student.renderer,
            rollout.cpus_per_worker,
            limits,
            rollout.episode_timeout_s,
            tuple(self._env_name(env_actor) for env_actor in range(rollout.env_actors)),
        )
        actor = RolloutWorker.options(  # type: ignore[attr-defined]
            num_cpus=rollout.cpus_per_worker,
            num_gpus=rollout.gpus_per_worker,
            max_restarts=-1,
            max_concurrency=10_000,
            **_place(placement, "rollout", index),
        )
        return actor.remote(index, settings)

    def _env_name(self, index: int) -> str:
        return f"agentrl-{self._name}-environment-{index}"


def _place(placement: Placement | None, role: Any, index: int) -> dict[str, Any]:
    if placement is None:
        return {}
    bundle = placement.indices[role][index]
    return {
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=placement.group,  # type: ignore[arg-type]
            placement_group_bundle_index=bundle,
            placement_group_capture_child_tasks=False,
        )
    }


def _or_raise(answer: Any) -> Any:
    if isinstance(answer, WeightError):
        raise answer
    return answer
