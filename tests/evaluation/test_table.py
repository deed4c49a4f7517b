"""The before/after table says what changed and whether it can be told from chance."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agentrl.evaluation.suite import score
from agentrl.evaluation.table import compare, to_markdown, to_rich


def reports(episode):
    def played(name, wins):
        return score(name, [episode("ok ok" if i < wins else "bad ok ok ok", i < wins) for i in range(100)])

    return played("before", 20), played("after", 60)


def test_the_markdown_table_in_full(episode):
    before, after = reports(episode)
    lines = to_markdown(compare(before, after)).splitlines()
    assert lines[:6] == [
        "| level | measure | before | after | difference | apart |",
        "|---|---|---|---|---|---|",
        "| all | success | 20.0 % [13.3 %, 28.9 %] n=100 | 60.0 % [50.2 %, 69.1 %] n=100 "
        "| +40.0 % [+26.8 %, +51.2 %] | yes |",
        "| all | mean turns | 3.60 [3.44, 3.76] n=100 | 2.80 [2.60, 3.00] n=100 | -0.80 [-1.05, -0.55] | yes |",
        lines[4],
        "| all | error recovery | – | – | – | no |",
    ]
    assert lines[4].startswith("| all | tool accuracy | 77.8 % [")
    assert [line.split(" | ")[0] for line in lines[6:10]] == ["| 1"] * 4
    assert lines[-1] == "[95% interval]; apart: the two intervals do not touch"


def test_the_terminal_table_says_the_same(episode):
    console = Console(file=io.StringIO(), width=160)
    console.print(to_rich(compare(*reports(episode))))
    assert "+40.0 % [+26.8 %, +51.2 %]" in console.file.getvalue()


def test_a_comparison_is_plain_json(episode):
    data = json.loads(json.dumps(compare(*reports(episode)).to_dict()))
    assert data["rows"][0]["difference"]["mean"] == pytest.approx(0.4)


def test_a_level_that_only_one_side_played_is_left_out(episode):
    before, after = score("before", [episode(level=1), episode(level=2)]), score("after", [episode(level=2)])
    assert {row.level for row in compare(before, after).rows} == {None, 2}


def test_intervals_of_different_confidence_are_not_compared(episode):
    with pytest.raises(ValueError, match="before has 95% intervals and after 90% ones"):
        compare(score("before", [episode()]), score("after", [episode()], confidence=0.9))
