"""Which episodes an evaluation plays."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from agentrl.config import parse_job
from agentrl.evaluation.suite import EvaluationReport, build_suite, evaluate, suite_levels

LADDERS = {"A-v0": 3, "B-v0": 1}
ERRORS = {"A-v0": ("wrong_dish", "early_order"), "B-v0": ()}


def job(**changes):
    data = {
        "name": "t",
        "environments": [{"id": "A-v0", "language": "zh"}],
        "student": {"path": "s"},
        "teacher": {"scorer": {"type": "hf", "path": "t"}},
        "evaluation": {"tasks": 20, "max_turns": 24},
    }
    return parse_job({**data, **changes})


def test_every_task_is_played_clean_and_with_an_injected_error():
    specs = build_suite(job(), LADDERS, ERRORS, levels=[2, 3])
    tasks = Counter((spec.level, spec.task) for spec in specs)
    assert len(specs) == 80
    assert set(tasks.values()) == {2}
    assert len(tasks) == 40
    assert sum(spec.inject is None for spec in specs) == 40
    assert len({spec.episode_id for spec in specs}) == 80
    assert len({spec.seed for spec in specs}) == 40, "both ends of a pair draw alike"


def test_the_suite_is_held_out_greedy_and_capped_as_the_job_says():
    for spec in build_suite(job(), LADDERS, ERRORS, levels=[1]):
        assert (spec.split, spec.temperature, spec.max_turns, spec.language) == ("heldout", 0.0, 24, "zh")


def test_errors_come_early_and_of_every_kind():
    injections = [s.inject for s in build_suite(job(), LADDERS, ERRORS, levels=[1, 2, 3]) if s.inject]
    assert {i.turn for i in injections} == {1, 2, 3}
    assert {i.error for i in injections} == {"wrong_dish", "early_order"}


def test_the_suite_does_not_depend_on_the_runs_seed():
    assert build_suite(job(seed=1), LADDERS, ERRORS) == build_suite(job(seed=2), LADDERS, ERRORS)


def test_a_longer_suite_of_other_levels_leaves_a_level_as_it_was():
    alone = build_suite(job(), LADDERS, ERRORS, levels=[2])
    beside = build_suite(job(), LADDERS, ERRORS, levels=[1, 2])
    assert [s for s in beside if s.level == 2] == alone


def test_an_environment_without_errors_is_played_clean_and_only_on_levels_it_has():
    two = job(environments=[{"id": "A-v0"}, {"id": "B-v0"}])
    specs = [s for s in build_suite(two, LADDERS, ERRORS, levels=[1, 2]) if s.env == "B-v0"]
    assert {(s.level, s.inject) for s in specs} == {(1, None)}
    assert len(specs) == 20


def test_a_shorter_suite_is_the_beginning_of_a_longer_one():
    short = build_suite(job(evaluation={"tasks": 5, "max_turns": 24}), LADDERS, ERRORS, levels=[2])
    assert short == build_suite(job(), LADDERS, ERRORS, levels=[2])[:10]


def test_no_meaning_is_played_twice_where_signatures_are_known():
    specs = build_suite(
        job(), LADDERS, ERRORS, [1, 2], signature_of=lambda env, level, task: str(task % (50 * level - 43))
    )
    assert len({(spec.level, spec.task % (50 * spec.level - 43)) for spec in specs if spec.inject is None}) == 27
    assert Counter(spec.level for spec in specs) == {1: 14, 2: 40}, "level 1 has seven meanings and no more"


@pytest.mark.parametrize(("start", "levels"), [(1, [1, 2]), (3, [3])])
def test_without_levels_the_start_level_and_the_one_above_are_played(start, levels):
    assert suite_levels(job(curriculum={"type": "fixed", "start_level": start}), LADDERS) == levels


def test_a_report_pools_the_levels_and_gives_each(episode):
    def collect(specs):
        return [episode("ok injected", s.level == 1, signature=f"{s.level}-{s.task}", spec=s) for s in reversed(specs)]

    report = evaluate(collect, job(), LADDERS, ERRORS, name="before", levels=[1, 2])
    assert report.overall.success.mean == 0.5
    assert (report.overall.success.n, report.overall.distinct_tasks) == (40, 40)
    assert {level: m.success.mean for level, m in report.by_level.items()} == {1: 1.0, 2: 0.0}
    assert report.by_level[1].error_recovery.mean == 1.0
    assert len(report.signatures) == 40
    assert EvaluationReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_a_missing_episode_is_named():
    with pytest.raises(RuntimeError, match=r"asked for 40 episodes and got 0; missing \['heldout-e0-l1-0000-clean'"):
        evaluate(lambda specs: [], job(), LADDERS, ERRORS, name="before", levels=[1])
