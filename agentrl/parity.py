"""Do the engines say what the learner says?  Asked after every weight sync, on the same few prompts.

A stale cache, an output layer that was not refreshed or a tensor under a wrong name shows here as a gap of
log-probabilities, long before it shows as a run that does not learn.
"""

from __future__ import annotations

import numpy as np

from agentrl.config import Job
from agentrl.learner.gang import LearnerGang
from agentrl.rollout.catalogue import openings
from agentrl.rollout.chat import ChatRenderer
from agentrl.rollout.pool import RolloutPool
from agentrl.types import Failure, WeightSnapshot

PROMPTS_PER_ENVIRONMENT = 3
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}
"""in nats; bfloat16 rounds a log-probability of -4 to steps of 0.016"""


class ParityError(Failure):
    """The engines do not run the learner's weights: training on their samples would be training on noise."""


class ParityProbe:
    """The prompts and the tolerance of one job."""

    def __init__(self, job: Job, renderer: ChatRenderer) -> None:
        self.tolerance = job.learner.parity_tolerance or TOLERANCE[job.student.dtype]
        self.prompts = list(openings(job, renderer, PROMPTS_PER_ENVIRONMENT))

    def check(self, learner: LearnerGang, pool: RolloutPool, snapshot: WeightSnapshot) -> float:
        """The largest gap over prompts, positions and engines.  Raises ParityError above the tolerance."""
        gaps = self._gaps(learner, pool)
        for worker, gap in gaps.items():
            if not gap <= self.tolerance:
                again = self._gaps(learner, pool).get(worker)
                raise ParityError(
                    f"rollout worker {worker} and the learner disagree by {gap:.2g} nats at policy version "
                    f"{snapshot.version} (tolerance {self.tolerance:g}; asked again: "
                    f"{'no answer' if again is None else format(again, '.2g')}); first differing tensor: "
                    f"{pool.first_difference(worker, snapshot) or 'none as received, so the loaded copy is stale'}"
                )
        return max(gaps.values())

    def _gaps(self, learner: LearnerGang, pool: RolloutPool) -> dict[int, float]:
        wanted = learner.probe_logprobs(self.prompts)
        return {
            worker: max(float(np.abs(a - w).max()) for a, w in zip(answers, wanted, strict=True))
            for worker, answers in pool.score(self.prompts).items()
        }
