"""The reward of a turn as a sum of named parts, each of which is logged.

    task       1 at a successful end, 0 otherwise
    shaping    gamma * Phi(s') - Phi(s) with Phi(s) = -steps_left(s) / max_turns, and Phi = 0 at a terminated end, which
               changes no optimal policy (Ng, Harada and Russell 1999); an end by truncation keeps its potential
    step       -0.005 for every turn
    malformed  -0.05 for a message cut off, or a call that does not parse
    repeated   -0.02 for a call made again though nothing has changed
    forbidden  -0.2 for a write that the rules forbid

Without penalties and shaping the value of a state under the expert is gamma ** (steps_left - 1), which is what teacher
values and value losses are tested against.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from envs.calls import MALFORMED_LABELS
from envs.contract import Label

MALFORMED = frozenset(MALFORMED_LABELS.values()) | {Label.TRUNCATED}


@dataclass(frozen=True, slots=True)
class Rewards:
    """Which parts there are: `shaping` (discounted by `gamma`) and the four penalties can be left out."""

    penalties: bool
    shaping: bool
    gamma: float

    def parts(
        self, labels: Collection[Label], before: int, after: int, horizon: int, *, terminated: bool, success: bool
    ) -> dict[str, float]:
        """The parts of a turn that led from `before` to `after` steps left, of at most `horizon` turns.

        `labels` are those of all its calls: a penalty is due once if any of them earns it.
        """
        parts = {"task": 1.0 if success else 0.0}
        if self.shaping:
            parts["shaping"] = self.gamma * (0.0 if terminated else -after / horizon) + before / horizon
        if self.penalties:
            parts["step"] = -0.005
            parts["malformed"] = -0.05 if any(label in MALFORMED for label in labels) else 0.0
            parts["repeated"] = -0.02 if Label.REPEATED_CALL in labels else 0.0
            parts["forbidden"] = -0.2 if Label.POLICY_VIOLATION in labels else 0.0
        return parts
