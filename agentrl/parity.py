"""Do the engines say what the learner says?  Asked after every weight sync, on the same few prompts.

Engines that were started afresh meanwhile are asked too, before they play.

A stale cache, an output layer that was not refreshed or a tensor under a wrong name shows here as a gap of
log-probabilities, long before it shows as a run that does not learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from agentrl.config import Job
from agentrl.learner.gang import LearnerGang
from agentrl.rollout.catalogue import Catalogue, openings
from agentrl.rollout.chat import ChatRenderer
from agentrl.rollout.pool import Check, RolloutPool
from agentrl.types import Failure, WeightSnapshot

PROMPTS_PER_ENVIRONMENT = 3
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""of `logprob_gap`, in nats; docs/adr/0009 says what rounding alone makes of it, and what a fault does"""


class ParityError(Failure):
    """The engines do not run the learner's weights: training on their samples would be training on noise."""


def logprob_gap(dtype: str, ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> float:
    """How far apart two computations of the same log-probabilities are, in nats, over all positions of all prompts.

    float32: the largest difference.  bfloat16: the mean, because one position's rounding says nothing: two attention
    kernels of one library differ there by tenths of a nat.  Raises ValueError for lists of different lengths.
    """
    gaps_N = np.concatenate([np.abs(np.asarray(a) - np.asarray(b)) for a, b in zip(ours, theirs, strict=True)])
    return float(gaps_N.mean() if dtype == "bfloat16" else gaps_N.max())


class ParityProbe:
    """The prompts and the tolerance of one job, and the largest gap of any engine since it was last taken."""

    def __init__(self, job: Job, catalogue: Catalogue, renderer: ChatRenderer) -> None:
        self.dtype = job.student.dtype
        self.tolerance = job.learner.parity_tolerance or TOLERANCE[self.dtype]
        self.prompts = list(openings(job, catalogue, renderer, PROMPTS_PER_ENVIRONMENT))
        self._gap: float | None = None

    def take_gap(self) -> float | None:
        """In nats; None when no engine was asked since the last call."""
        gap, self._gap = self._gap, None
        return gap

    def against(self, learner: LearnerGang, pool: RolloutPool, snapshot: WeightSnapshot) -> Check:
        """A check of workers that have taken the snapshot, on what the learner says now.

        It raises ParityError for a gap above the tolerance.
        """
        wanted = learner.probe_logprobs(self.prompts)

        def gaps(workers: Sequence[int]) -> dict[int, float]:
            answers = pool.score(self.prompts, workers)
            return {worker: logprob_gap(self.dtype, answer, wanted) for worker, answer in answers.items()}

        def check(workers: Sequence[int]) -> None:
            for worker, gap in gaps(workers).items():
                if not gap <= self.tolerance:
                    again = gaps([worker]).get(worker)
                    raise ParityError(
                        f"rollout worker {worker} and the learner disagree by {gap:.2g} nats at policy version "
                        f"{snapshot.version} (tolerance {self.tolerance:g}; asked again: "
                        f"{'no answer' if again is None else format(again, '.2g')}); first differing tensor: "
                        f"{pool.first_difference(worker, snapshot) or 'none as received, so the loaded copy is stale'}"
                    )
                self._gap = max(self._gap or 0.0, gap)

        return check
