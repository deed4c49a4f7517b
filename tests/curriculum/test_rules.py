"""When a rule goes up, and when it does not."""

from __future__ import annotations

import json

import pytest

from agentrl.config import FixedCurriculum, LengthCurriculum, SuccessCurriculum
from agentrl.curriculum.rules import FixedRule, LengthRule, SuccessRule, rule_of
from agentrl.types import Outcome


def outcomes(successes: int, failures: int, turns: int = 6, oracle_turns: int = 4) -> list[Outcome]:
    won = [Outcome("e", 1, True, turns, oracle_turns)] * successes
    return won + [Outcome("e", 1, False, 99, oracle_turns)] * failures


def test_a_fixed_rule_never_goes_up():
    rule = FixedRule()
    rule.record(outcomes(1000, 0))
    assert rule.should_promote(10**6) is None


def test_a_length_rule_goes_up_after_its_steps_and_counts_again_from_there():
    rule = LengthRule(every_steps=3)
    assert [step for step in range(3) if rule.should_promote(step)] == [2]
    rule.promoted(2)
    assert [step for step in range(3, 7) if rule.should_promote(step)] == [5, 6]


def test_success_goes_up_at_exactly_its_threshold_over_a_full_window():
    rule = SuccessRule(window=10, success=0.8, max_turn_ratio=1.5)
    rule.record(outcomes(8, 1))
    assert rule.should_promote(0) is None, "nine episodes do not fill a window of ten"
    rule.record(outcomes(0, 1))
    assert rule.should_promote(0) == (
        "success 0.80 (needs 0.80) at 1.50 times the oracle's turns (at most 1.50) over 10 episodes"
    )


def test_one_success_too_few_stays():
    rule = SuccessRule(window=10, success=0.8, max_turn_ratio=1.5)
    rule.record(outcomes(7, 3))
    assert rule.should_promote(0) is None


def test_success_by_detours_stays():
    rule = SuccessRule(window=10, success=0.8, max_turn_ratio=1.5)
    rule.record(outcomes(9, 0, turns=6) + outcomes(1, 0, turns=7))  # mean ratio 1.525
    assert rule.should_promote(0) is None


def test_turns_of_failed_episodes_do_not_count_as_detours():
    rule = SuccessRule(window=10, success=0.8, max_turn_ratio=1.0)
    rule.record(outcomes(8, 2, turns=4))
    assert rule.should_promote(0) is not None


def test_only_the_last_window_counts():
    rule = SuccessRule(window=10, success=0.8, max_turn_ratio=1.5)
    rule.record(outcomes(0, 50))
    rule.record(outcomes(10, 0))
    assert rule.should_promote(0) is not None


def test_a_promotion_empties_the_window():
    rule = SuccessRule(window=4, success=0.8, max_turn_ratio=1.5)
    rule.record(outcomes(4, 0))
    rule.promoted(0)
    rule.record(outcomes(3, 0))
    assert rule.should_promote(1) is None


def test_no_success_at_all_stays_even_where_none_is_asked_for():
    rule = SuccessRule(window=2, success=0.0, max_turn_ratio=9.0)
    rule.record(outcomes(0, 2))
    assert rule.should_promote(0) is None


def test_an_oracle_without_turns_is_refused_by_name():
    rule = SuccessRule(window=2, success=0.5, max_turn_ratio=9.0)
    with pytest.raises(ValueError, match="e level 1 has oracle_turns=0"):
        rule.record(outcomes(1, 0, oracle_turns=0))


@pytest.mark.parametrize("config", [FixedCurriculum(), LengthCurriculum(every_steps=2), SuccessCurriculum(window=4)])
def test_a_rule_goes_on_from_its_saved_state(config):
    first, second = rule_of(config), rule_of(config)
    first.record(outcomes(3, 1))
    first.promoted(0)
    first.record(outcomes(4, 0))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [second.should_promote(step) for step in range(4)] == [first.should_promote(step) for step in range(4)]
    assert second.state_dict() == first.state_dict()
