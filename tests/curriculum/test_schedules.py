"""The path of the loss weights, in exact figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import LossWeights, WeightTriple
from agentrl.curriculum.schedules import loss_weights_at, way_gone


def test_the_defaults_start_and_end_exactly_where_they_say():
    weights = LossWeights()
    assert loss_weights_at(weights, 0, 11) == WeightTriple(kl=0.7, value=0.2, ppo=0.1)
    assert loss_weights_at(weights, 10, 11) == WeightTriple(kl=0.3, value=0.2, ppo=0.5)


def test_half_way_along_the_line_the_weights_are_half_way():
    half = loss_weights_at(LossWeights(shape="linear"), 5, 11)
    assert (half.kl, half.value, half.ppo) == pytest.approx((0.5, 0.2, 0.3), abs=1e-15)


@pytest.mark.parametrize(
    ("shape", "way"), [("constant", [0, 0, 0, 0, 0]), ("linear", [0, 0.25, 0.5, 0.75, 1]), ("cosine", None)]
)
def test_the_shapes(shape, way):
    way = way or [0, (1 - 2**-0.5) / 2, 0.5, (1 + 2**-0.5) / 2, 1]
    assert [way_gone(shape, step, 5) for step in range(5)] == pytest.approx(way, abs=1e-15)


def test_a_promotion_lifts_the_weights_half_way_back_and_they_reach_the_end_again():
    # at step 4 of 0..8 half of the way is gone; the promotion halves that, and steps 5..8 go on from 0.25 to 1
    way = [way_gone("linear", step, 9, promotions=[4], lift=0.5) for step in range(9)]
    assert way == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.25, 0.5, 0.75, 1.0], abs=1e-15)


def test_two_promotions_lift_twice():
    # a quarter is gone at 1 and lifted wholly; nothing is gone at 2, so the second lift finds nothing to take
    assert [way_gone("linear", step, 5, promotions=[1, 2], lift=1.0) for step in range(5)] == [0, 0.25, 0, 0, 1]


def test_a_promotion_of_the_future_changes_nothing():
    assert way_gone("linear", 3, 9, promotions=[3, 7], lift=1.0) == way_gone("linear", 3, 9)


def test_a_promotion_before_the_last_step_leaves_it_lifted():
    assert way_gone("linear", 4, 5, promotions=[3], lift=0.5) == 0.375


def test_a_run_of_one_step_is_at_the_start():
    assert loss_weights_at(LossWeights(), 0, 1) == LossWeights().start


def test_a_step_outside_of_the_run_is_refused():
    with pytest.raises(ValueError, match="step 5 is outside of a run of 5 steps"):
        way_gone("linear", 5, 5)


@given(
    shape=st.sampled_from(["linear", "cosine"]),
    steps=st.integers(2, 60),
    promotions=st.lists(st.integers(0, 60), max_size=5, unique=True),
    lift=st.floats(0, 1),
)
def test_the_way_never_leaves_start_and_end_and_is_finished_at_the_last_step(shape, steps, promotions, lift):
    early = [step for step in promotions if step < steps - 2]
    way = [way_gone(shape, step, steps, early, lift) for step in range(steps)]
    assert all(-1e-12 <= w <= 1 + 1e-12 for w in way)
    assert way[-1] == pytest.approx(1.0, abs=1e-12)
