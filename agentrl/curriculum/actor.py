"""The curriculum in a Ray actor, and the driver's handle to it that survives the actor's death.

The actor's process can be lost with its node, and Ray would bring it back at the start of the run.  So the handle
keeps the state that every call left behind; when the actor is gone, it starts another one, hands it that state
and asks again.  Asking twice does no harm: a call's effect comes with its answer, or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.config import Job, WeightTriple
from agentrl.curriculum.curriculum import Curriculum
from agentrl.types import EpisodeSpec, Failure, Outcome, Placement, Promotion

logger = logging.getLogger(__name__)

RESTARTS = 3
"""new actors tried for one call before its error rises"""


@ray.remote(num_cpus=0)
class CurriculumActor:
    """One curriculum in a process of its own; every answer comes with the state after it."""

    def __init__(
        self, job: Job, ladders: Mapping[str, int], errors: Mapping[str, Sequence[str]], state: dict[str, Any] | None
    ) -> None:
        self._curriculum = Curriculum(job, ladders, errors)
        if state is not None:
            self._curriculum.load_state_dict(state)

    def ask(self, method: str, *args: Any) -> tuple[Any, dict[str, Any]]:
        answer = getattr(self._curriculum, method)(*args)
        return answer, self._curriculum.state_dict()


class CurriculumSilent(Failure):
    """The curriculum's actor lives and does not answer."""


class CurriculumHandle:
    """`Curriculum`, method by method, answered by the actor.  Raises CurriculumSilent after `timeout_s` of silence."""

    def __init__(
        self,
        job: Job,
        ladders: Mapping[str, int],
        errors: Mapping[str, Sequence[str]],
        *,
        placement: Placement | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._job, self._ladders, self._errors = job, dict(ladders), dict(errors)
        self._placement, self._timeout_s = placement, timeout_s
        self._state = Curriculum(job, ladders, errors).state_dict()  # a wrong job raises here, not in an actor
        self._actor = self._start()

    def plan(self, step: int, n_episodes: int) -> list[EpisodeSpec]:
        return self._ask("plan", step, n_episodes)

    def record(self, outcomes: Sequence[Outcome]) -> None:
        self._ask("record", list(outcomes))

    def promote(self, step: int) -> Promotion | None:
        return self._ask("promote", step)

    def loss_weights(self, step: int) -> WeightTriple:
        return self._ask("loss_weights", step)

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ask("load_state_dict", state)

    @property
    def level(self) -> int:
        return self._state["level"]

    def close(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    def _start(self) -> Any:
        options: dict[str, Any] = {}
        if self._placement is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._placement.group,  # type: ignore[arg-type]
                placement_group_bundle_index=self._placement.indices["curriculum"][0],
            )
        return CurriculumActor.options(**options).remote(self._job, self._ladders, self._errors, self._state)

    def _ask(self, method: str, *args: Any) -> Any:
        for attempt in range(RESTARTS + 1):
            try:
                answer, self._state = ray.get(self._actor.ask.remote(method, *args), timeout=self._timeout_s)
                return answer
            except GetTimeoutError as error:
                raise CurriculumSilent(
                    f"the curriculum did not answer {method} within {self._timeout_s:g} s: the machine is overloaded, "
                    "or its node is gone; the last checkpoint resumes with `agentrl train --resume RUN`"
                ) from error
            except RayActorError:
                if attempt == RESTARTS:
                    raise
                logger.warning("the curriculum actor died during %s: starting another from its last state", method)
                self._actor = self._start()
        raise AssertionError("unreachable")
