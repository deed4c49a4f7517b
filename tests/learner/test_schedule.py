"""The learning-rate factor: warm-up, plateau, cosine."""

from __future__ import annotations

import pytest

from agentrl.config import Schedule
from agentrl.learner.schedule import lr_factor

SCHEDULE = Schedule(warmup_steps=4, decay_from=0.5, final=0.1)


@pytest.mark.parametrize(
    ("update", "progress", "factor"),
    [(0, 0.0, 0.25), (3, 0.0, 1.0), (100, 0.5, 1.0), (100, 0.75, 0.55), (100, 1.0, 0.1), (0, 1.0, 0.025)],
)
def test_the_factor_warms_up_stays_and_decays_to_its_end(update: int, progress: float, factor: float) -> None:
    assert lr_factor(SCHEDULE, update, progress) == pytest.approx(factor)


def test_no_decay_begins_at_the_end_of_the_run() -> None:
    assert lr_factor(Schedule(warmup_steps=0, decay_from=1.0), 0, 1.0) == 1.0


def test_progress_beyond_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        lr_factor(SCHEDULE, 0, 1.5)
