"""docs/environments.md holds: its code runs, and its tables name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envs.base import DialogueEnv
from envs.contract import Label
from envs.food_order.env import FoodOrderEnv
from envs.search_calc_qa import SearchCalcQAEnv

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["play", "write your own"])
def test_each_example_runs(code: str) -> None:
    exec(compile(code, "docs/environments.md", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("env", [FoodOrderEnv, SearchCalcQAEnv])
def test_every_level_and_injected_error_is_in_the_page(env: type[DialogueEnv]) -> None:
    for level in env.levels():
        assert re.search(
            rf"^\| {level.index} \| {re.escape(level.name)} \|.*\| {level.max_turns} \|$", PAGE, re.MULTILINE
        )
    assert [error for error in env.errors if f"`{error}`" not in PAGE] == []


def test_every_label_is_in_the_page() -> None:
    assert [label for label in Label if f"`{label}`" not in PAGE and f"`.{label.split('.')[-1]}`" not in PAGE] == []
