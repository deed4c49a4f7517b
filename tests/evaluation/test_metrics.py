"""The measures and their intervals, against published and hand-made figures."""

from __future__ import annotations

import pytest

from agentrl.evaluation.metrics import Estimate, apart, difference, mean, measure, proportion, ratio


def test_wilsons_interval_of_the_textbook_case():
    # Newcombe 1998, Statistics in Medicine 17:857, table I: 81 of 263, score method without continuity correction
    estimate = proportion(81, 263)
    assert (estimate.mean, estimate.n) == (81 / 263, 263)
    assert (estimate.low, estimate.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_no_success_at_all_still_has_an_interval():
    # same table: 0 of 20
    estimate = proportion(0, 20)
    assert (estimate.low, estimate.high) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_interval_of_a_mean_is_students():
    # sd 1, n 3: half width t(0.975, 2) / sqrt(3) = 4.302653 / 1.732051
    estimate = mean([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((2.0, 2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_one_value_has_a_mean_and_no_interval():
    assert mean([4.0]) == Estimate(4.0, None, None, 1)


def test_nothing_measured_is_none_and_not_zero():
    nothing = Estimate(None, None, None, 0)
    assert (proportion(0, 0), mean([]), ratio([]), ratio([(0, 0)])) == (nothing,) * 4


def test_a_ratio_pools_turns_and_widens_for_turns_that_fail_together():
    alike = ratio([(5, 10)] * 10 + [(4, 10), (6, 10)])
    together = ratio([(10, 10), (0, 10)] * 6)
    assert (alike.mean, alike.n) == (together.mean, together.n) == (0.5, 120)
    assert together.high - together.low > 5 * (alike.high - alike.low)


def test_a_ratio_that_never_varies_falls_back_on_the_number_of_episodes():
    estimate = ratio([(7, 7)] * 20)
    assert (estimate.mean, estimate.high, estimate.n) == (1.0, 1.0, 140)
    assert estimate.low == pytest.approx(1 - 0.1611, abs=5e-5)


def test_a_ratio_is_the_same_each_time_it_is_computed():
    parts = [(i % 3, 3) for i in range(1, 30)]
    assert ratio(parts) == ratio(parts)


def test_the_difference_of_two_shares_is_newcombes():
    # Newcombe 1998, Statistics in Medicine 17:873, table II, method 10: 56/70 - 48/80
    gain = difference(proportion(48, 80), proportion(56, 70))
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_a_difference_without_one_side_is_none():
    assert difference(proportion(1, 2), proportion(0, 0)) == Estimate(None, None, None, 0)


@pytest.mark.parametrize(
    ("low", "high", "is_apart"), [(0.5, 0.6, False), (0.51, 0.6, True), (0.1, 0.2, False), (0.1, 0.19, True)]
)
def test_intervals_that_touch_are_not_apart(low, high, is_apart):
    assert apart(Estimate(0.3, 0.2, 0.5, 9), Estimate((low + high) / 2, low, high, 9)) is is_apart


def test_success_and_turns_are_of_the_clean_episodes(episode):
    metrics = measure(
        [episode("ok ok", True), episode("ok ok ok ok", False), episode("ok injected", True, inject=True)]
    )
    assert (metrics.success.mean, metrics.success.n) == (0.5, 2)
    assert (metrics.mean_turns.mean, metrics.mean_turns.n) == (3.0, 2)


def test_recovery_is_success_after_an_injected_error(episode):
    episodes = [episode("ok injected ok", won, inject=True) for won in (True, False, False, False)]
    assert measure(episodes).error_recovery == proportion(1, 4)


def test_an_episode_that_ended_before_its_injection_is_counted_and_left_out(episode):
    metrics = measure([episode("ok", False, inject=True), episode("ok injected", True, inject=True)])
    assert (metrics.error_recovery.n, metrics.missed_injections) == (1, 1)


def test_tool_accuracy_is_of_turns_that_call_a_tool(episode):
    metrics = measure([episode("ok bad say say"), episode("ok ok env injected")])
    assert metrics.tool_accuracy.mean == 3 / 4
    assert metrics.tool_accuracy.n == 4


def test_a_broken_episode_is_counted_and_left_out(episode):
    metrics = measure([episode("ok", True), episode("ok", False, failure="the environment raised KeyError")])
    assert (metrics.success.mean, metrics.success.n, metrics.failed) == (1.0, 1, 1)


def test_repeated_tasks_are_seen(episode):
    assert measure([episode(signature=s) for s in "aab"]).distinct_tasks == 2
