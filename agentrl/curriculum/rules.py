"""When to go one level up.  A rule sees the outcomes of the current level alone and never chooses tasks.

`Curriculum` calls, once a step and in this order: `record` with what the step's episodes came to, `should_promote`,
and, when it does go up, `promoted`.  Steps count from 0.  States are plain JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from agentrl.config import FixedCurriculum, LengthCurriculum, SuccessCurriculum
from agentrl.types import Outcome


class Rule(Protocol):
    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Take in episodes of the current level; those that broke (a trajectory's `failure`) are not outcomes."""
        ...

    def should_promote(self, step: int) -> str | None:
        """The reason for going up after step `step`, in words and figures; None to stay."""
        ...

    def promoted(self, step: int) -> None:
        """The curriculum went up after step `step`: begin again."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FixedRule:
    """Stays."""

    def record(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def should_promote(self, step: int) -> str | None:
        return None

    def promoted(self, step: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class LengthRule:
    """Goes up when `every_steps` steps have been taken on the level."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self._first_step = 0

    def record(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def should_promote(self, step: int) -> str | None:
        taken = step + 1 - self._first_step
        return f"{taken} steps on the level" if taken >= self.every_steps else None

    def promoted(self, step: int) -> None:
        self._first_step = step + 1

    def state_dict(self) -> dict[str, Any]:
        return {"first_step": self._first_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first_step = int(state["first_step"])


class SuccessRule:
    """Goes up when the last `window` episodes of the level hold enough success, reached without detours.

    Two measures must hold over a full window: the share of successes is at least `success`, and the mean of
    turns / oracle turns over the successes is at most `max_turn_ratio`.  The second keeps a student that muddles
    through where it is.
    """

    def __init__(self, window: int, success: float, max_turn_ratio: float) -> None:
        self.window, self.success, self.max_turn_ratio = window, success, max_turn_ratio
        #: for each episode turns / oracle turns, None where it did not succeed
        self._ratios: deque[float | None] = deque(maxlen=window)

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """See `Rule`.  Raises ValueError for a success whose oracle needs no turn: its ratio means nothing."""
        for outcome in outcomes:
            if outcome.success and outcome.oracle_turns < 1:
                raise ValueError(
                    f"an episode of {outcome.env} level {outcome.level} has oracle_turns={outcome.oracle_turns}: an "
                    "environment must report at least one turn for a task's oracle"
                )
            self._ratios.append(outcome.turns / outcome.oracle_turns if outcome.success else None)

    def should_promote(self, step: int) -> str | None:
        if len(self._ratios) < self.window:
            return None
        ratios = [ratio for ratio in self._ratios if ratio is not None]
        share = len(ratios) / self.window
        if not ratios or share < self.success:
            return None
        ratio = sum(ratios) / len(ratios)
        if ratio > self.max_turn_ratio:
            return None
        return (
            f"success {share:.2f} (needs {self.success:.2f}) at {ratio:.2f} times the oracle's turns "
            f"(at most {self.max_turn_ratio:.2f}) over {self.window} episodes"
        )

    def promoted(self, step: int) -> None:
        self._ratios.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"ratios": list(self._ratios)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ratios = deque(state["ratios"], maxlen=self.window)


def rule_of(config: FixedCurriculum | LengthCurriculum | SuccessCurriculum) -> Rule:
    """The rule that a job's `curriculum` section asks for."""
    match config:
        case FixedCurriculum():
            return FixedRule()
        case LengthCurriculum(every_steps=every_steps):
            return LengthRule(every_steps)
        case SuccessCurriculum(window=window, success=success, max_turn_ratio=ratio):
            return SuccessRule(window, success, ratio)
