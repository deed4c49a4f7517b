"""The charts show the figures that are there, and no others."""

from __future__ import annotations

import pytest

from agentrl.observe.charts import charts, levels_of, promotions, series, smooth

STEPS = [
    {"step": 0, "rollout": {"success": 0.25, "success_by_level": {"1": 0.25}}, "learner": {"loss/kl": 1.0, "lr": 0.1}},
    {
        "step": 1,
        "learner": {"loss/kl": None, "loss/ppo": 0.5, "ppo/ratio": 1.0},
        "promoted": 2,
        "phase_s": {"learn": 3.0},
    },
    {"step": 2, "rollout": {"success": 0.75, "success_by_level": {"2": 0.75, "10": 0.5}}, "parity_gap": 0.0},
]


def by_title(found):
    return {chart.title: chart.figure for chart in found}


def test_a_series_is_over_steps_done_and_skips_what_is_missing():
    assert series(STEPS, ("rollout", "success")) == ([1, 3], [0.25, 0.75])
    assert series(STEPS, ("learner", "loss/kl")) == ([1], [1.0])
    assert series(STEPS, ("no", "such", "key")) == ([], [])


def test_levels_are_in_the_order_of_numbers():
    assert levels_of(STEPS) == ["1", "2", "10"]


def test_a_promotion_stands_at_the_steps_done_when_it_came():
    assert promotions(STEPS) == [(2, 2)]


def test_a_running_mean_looks_back_only():
    assert smooth([1.0, 3.0, 5.0, 7.0], span=2) == [1.0, 2.0, 4.0, 6.0]


def test_losses_share_a_chart_and_other_figures_have_their_own():
    found = by_title(charts(STEPS))
    assert [trace.name for trace in found["losses"].data] == ["kl", "ppo"]
    assert list(found["learning rate"].data[0].y) == [0.1]
    assert list(found["ppo: ratio"].data[0].y) == [1.0]
    assert list(found["seconds by phase"].data[0].y) == [3.0]


def test_there_is_no_chart_without_a_figure():
    assert [chart.title for chart in charts([{"step": 0}])] == ["success"]
    assert [chart.title for chart in charts([])] == ["success"]


def test_a_parity_gap_of_zero_is_shown_on_an_axis_that_has_a_zero():
    assert by_title(charts(STEPS))["parity gap, engine to learner"].layout.yaxis.type is None


def test_an_evaluation_is_a_point_with_its_interval():
    estimate = {"mean": 0.5, "low": 0.4, "high": 0.7, "n": 9}
    evaluations = [{"step": 3, "success": estimate}, {"step": 0, "success": {**estimate, "low": None, "high": None}}]
    held_out = {trace.name: trace for trace in charts(STEPS, evaluations)[0].figure.data}["held out"]
    assert list(held_out.x) == [0, 3]
    assert list(held_out.error_y.array) == pytest.approx([0.0, 0.2])
    assert list(held_out.error_y.arrayminus) == pytest.approx([0.0, 0.1])
