"""A held-out task met in training is found, by its meaning or by its text."""

from __future__ import annotations

import pytest

from agentrl.evaluation.leaks import LeakError, check_leaks, near_duplicates


def test_disjoint_signatures_pass():
    check_leaks(["a", "b"], ["c"])


def test_a_shared_signature_is_named():
    with pytest.raises(LeakError, match=r"2 held-out task\(s\) were met in training: b; c"):
        check_leaks(["a", "b", "c"], ["c", "b", "d"])


def test_the_same_text_in_other_case_and_spacing_is_a_duplicate():
    assert near_duplicates(["I want two  Miso ramen bowls"], ["i want two miso ramen bowls"]) == [(0, 0, 1.0)]


def test_one_changed_word_in_a_long_text_is_a_near_duplicate():
    text = " ".join(f"dish {i} costs {i * i} coins;" for i in range(30))
    pairs = near_duplicates(["other words altogether", text + " thanks"], [text + " cheers"])
    assert [pair[:2] for pair in pairs] == [(1, 0)]
    assert 0.95 < pairs[0][2] < 1.0


def test_two_different_orders_of_one_template_are_not():
    assert near_duplicates(["two miso ramen to pine road"], ["one corn soup to oak street"]) == []


def test_chinese_text_is_covered():
    assert near_duplicates(["我想要两碗味噌拉面，送到松树路，谢谢你"], ["我想要两碗味噌拉面，送到松树路，谢谢你"]) == [
        (0, 0, 1.0)
    ]
