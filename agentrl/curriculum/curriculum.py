"""The curriculum: which episodes a step plays, on which level, and how its losses are weighed.

A plain object, so that it can be tested and read without Ray; `actor` puts it into a process of its own.  `plan` and
`loss_weights` change nothing: what they answer follows from the job, the step and the promotions so far, so a resumed
run plans what the uninterrupted one would have.  There is no random state to save.  Steps count from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agentrl.config import Job, JobError, WeightTriple
from agentrl.curriculum.rules import rule_of
from agentrl.curriculum.schedules import loss_weights_at
from agentrl.types import TASKS, EpisodeSpec, Outcome, Promotion, derive_seed, draw_injection


class Curriculum:
    """One level for all environments; an environment with a shorter ladder stays on its top rung.

    `ladders` says how many levels each environment has, by id, and `errors` which errors its `inject` knows.  Raises
    JobError when the job asks for a level that no environment has, or for an environment that `ladders` does not know.
    """

    def __init__(self, job: Job, ladders: Mapping[str, int], errors: Mapping[str, Sequence[str]]) -> None:
        missing = sorted({environment.id for environment in job.environments} - set(ladders))
        if missing:
            raise JobError(f"environments: no ladder is known for {', '.join(missing)}")
        self._job = job
        self._ladders = {environment.id: ladders[environment.id] for environment in job.environments}
        self._errors = {environment.id: tuple(errors.get(environment.id, ())) for environment in job.environments}
        highest = max(self._ladders.values())
        for key in ("start_level", "max_level"):
            asked = getattr(job.curriculum, key)
            if asked is not None and asked > highest:
                raise JobError(f"curriculum.{key} is {asked}, but the environments' ladders end at level {highest}")
        self._top = job.curriculum.max_level or highest
        self._rule = rule_of(job.curriculum)
        self.level: int = job.curriculum.start_level
        self.promotions: list[Promotion] = []

    def plan(self, step: int, n_episodes: int) -> list[EpisodeSpec]:
        """The episodes of a step, all on different tasks of the training split.

        Environments get their share by weight, earlier levels of this run theirs by `rehearsal` and forced errors
        theirs by `injected_errors`, each to within one episode in every step and exactly in the long run; which episode
        gets what is shuffled.  An environment that knows no errors is played clean.
        """
        job = self._job
        rng = np.random.default_rng(derive_seed(job.seed, step, "plan"))
        weights = np.array([environment.weight for environment in job.environments])
        environments = rng.permutation(_systematic(weights / weights.sum(), n_episodes, rng.random()))
        rehearsed = _chosen(job.curriculum.rehearsal, n_episodes, rng)
        tasks = rng.choice(TASKS, size=n_episodes, replace=False)
        injected = _chosen(job.curriculum.injected_errors, n_episodes, rng)
        specs = []
        for i in range(n_episodes):
            environment = job.environments[environments[i]]
            current = self._level_of(environment.id)
            earlier = range(min(job.curriculum.start_level, current), current)
            level = int(rng.choice(earlier)) if rehearsed[i] and earlier else current
            task = int(tasks[i])
            errors = self._errors[environment.id] if injected[i] else ()
            specs.append(
                EpisodeSpec(
                    episode_id=f"{step:05d}-{i:03d}",
                    env=environment.id,
                    level=level,
                    task=task,
                    seed=derive_seed(job.seed, step, task, 0),
                    split="train",
                    language=environment.language,
                    temperature=job.rollout.temperature,
                    max_turns=job.rollout.max_turns,
                    max_turns_after_error=job.rollout.max_turns_after_error,
                    inject=draw_injection(errors, rng) if errors else None,
                )
            )
        return specs

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Tell the rule how the current level went; episodes on other levels do not count towards a promotion.

        So neither rehearsals do nor an environment that has no such level.  Episodes with a forced error count: who has
        mastered a level finds the way back.  Leave out episodes that broke: a trajectory with a `failure` has no
        outcome.
        """
        self._rule.record([outcome for outcome in outcomes if outcome.level == self.level])

    def promote(self, step: int) -> Promotion | None:
        """Go one level up after step `step` if the rule says so and there is one; what was done and why."""
        if self.level >= self._top:
            return None
        reason = self._rule.should_promote(step)
        if reason is None:
            return None
        self.level += 1
        self._rule.promoted(step)
        promotion = Promotion(step, self.level, reason)
        self.promotions.append(promotion)
        return promotion

    def loss_weights(self, step: int) -> WeightTriple:
        """The weights of KL, value and PPO in the loss of a step."""
        promotions = [promotion.step for promotion in self.promotions]
        return loss_weights_at(self._job.learner.loss.weights, step, self._job.steps, promotions)

    def state_dict(self) -> dict[str, Any]:
        """All that changes over a run, as plain JSON."""
        return {
            "type": self._job.curriculum.type,
            "level": self.level,
            "promotions": [asdict(promotion) for promotion in self.promotions],
            "rule": self._rule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back to a state that `state_dict` gave.  Raises JobError when it does not fit the job."""
        if state["type"] != self._job.curriculum.type:
            raise JobError(
                f"curriculum.type is {self._job.curriculum.type!r}, but the saved state is of {state['type']!r}: "
                "resume with the run's own job.yaml"
            )
        if state["level"] > self._top:
            raise JobError(f"the saved curriculum is on level {state['level']}, but the job's top level is {self._top}")
        self.level = state["level"]
        self.promotions = [Promotion(**promotion) for promotion in state["promotions"]]
        self._rule.load_state_dict(state["rule"])

    def _level_of(self, env: str) -> int:
        return min(self.level, self._ladders[env])


def _chosen(share: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """1 for a random `share` of n episodes, 0 for the others."""
    return rng.permutation(_systematic(np.array([1 - share, share]), n, rng.random()))


def _systematic(shares: np.ndarray, n: int, offset: float) -> np.ndarray:
    """Draw n indices, index i n * shares[i] times rounded up or down; `offset` of [0, 1) makes the mean exact."""
    points = (np.arange(n) + offset) / n
    return np.minimum(np.searchsorted(np.cumsum(shares), points, side="right"), len(shares) - 1)
