"""What a step plays, and when the level rises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from agentrl.config import Environment, JobError, parse_job
from agentrl.curriculum.curriculum import Curriculum
from agentrl.types import Outcome, derive_seed


def job(**changes):
    data = {
        "name": "t",
        "seed": 7,
        "steps": 9,
        "environments": [{"id": "A-v0"}],
        "student": {"path": "s"},
        "teacher": {"scorer": {"type": "hf", "path": "t"}},
        "curriculum": {"type": "length", "every_steps": 2, "rehearsal": 0.25},
    }
    return parse_job({**data, **changes})


def won(env: str, level: int, n: int) -> list[Outcome]:
    return [Outcome(env, level, True, 4, 4)] * n


def test_a_plan_is_the_same_whenever_it_is_asked_for():
    first, second = Curriculum(job(), {"A-v0": 3}, {}), Curriculum(job(), {"A-v0": 3}, {})
    second.plan(0, 8)
    assert first.plan(5, 16) == second.plan(5, 16)
    assert first.plan(5, 16) != first.plan(6, 16)


def test_a_plan_is_the_same_in_another_process():
    code = (
        "import importlib.util,sys; s=importlib.util.spec_from_file_location('t', sys.argv[1]);"
        "m=importlib.util.module_from_spec(s); s.loader.exec_module(m);"
        "print(m.Curriculum(m.job(), {'A-v0': 3}, {}).plan(5, 4))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True, timeout=120
    )
    assert other.stdout.strip() == str(Curriculum(job(), {"A-v0": 3}, {}).plan(5, 4))


def test_specs_carry_the_jobs_settings_and_a_seed_of_run_step_task_and_attempt():
    curriculum = Curriculum(job(rollout={"temperature": 0.5, "max_turns": 18}), {"A-v0": 3}, {})
    specs = curriculum.plan(12, 3)
    assert [spec.episode_id for spec in specs] == ["00012-000", "00012-001", "00012-002"]
    for spec in specs:
        assert (spec.split, spec.temperature, spec.max_turns, spec.attempt) == ("train", 0.5, 18, 0)
        assert spec.seed == derive_seed(7, 12, spec.task, 0)


def test_the_tasks_of_a_step_are_distinct():
    assert len({spec.task for spec in Curriculum(job(), {"A-v0": 3}, {}).plan(0, 512)}) == 512


def test_errors_are_forced_upon_their_share_of_the_episodes_of_environments_that_know_any():
    config = {"type": "fixed", "injected_errors": 0.25}
    environments = [{"id": "A-v0"}, {"id": "B-v0"}]
    curriculum = Curriculum(
        job(curriculum=config, environments=environments),
        {"A-v0": 3, "B-v0": 3},
        {"A-v0": ("oops", "ouch"), "B-v0": ()},
    )
    specs = [spec for step in range(9) for spec in curriculum.plan(step, 64)]
    assert all(spec.inject is None for spec in specs if spec.env == "B-v0")
    forced = [spec.inject for spec in specs if spec.inject is not None]
    assert len(forced) / sum(spec.env == "A-v0" for spec in specs) == pytest.approx(0.25, abs=0.06)
    assert {inject.error for inject in forced} == {"oops", "ouch"}
    assert {inject.turn for inject in forced} == {1, 2, 3}


def test_there_is_nothing_to_rehearse_on_the_first_level():
    assert {spec.level for spec in Curriculum(job(), {"A-v0": 3}, {}).plan(0, 64)} == {1}


def test_a_quarter_of_the_episodes_rehearses_the_earlier_levels():
    curriculum = Curriculum(job(), {"A-v0": 3}, {})
    curriculum.promote(1)
    curriculum.promote(3)
    levels = Counter(spec.level for spec in curriculum.plan(4, 64))
    assert levels[3] == 48
    assert levels[1] + levels[2] == 16
    assert min(levels.values()) > 0


def test_levels_below_the_start_are_not_rehearsed():
    curriculum = Curriculum(job(curriculum={"type": "length", "every_steps": 1, "start_level": 2}), {"A-v0": 3}, {})
    curriculum.promote(0)
    assert {spec.level for spec in curriculum.plan(1, 64)} == {2, 3}


def test_environments_get_their_share_to_within_one_episode():
    environments = [Environment(id="A-v0", weight=1.0), Environment(id="B-v0", weight=2.0, language="zh")]
    curriculum = Curriculum(job(environments=[e.model_dump() for e in environments]), {"A-v0": 3, "B-v0": 3}, {})
    totals = Counter()
    for step in range(9):
        specs = curriculum.plan(step, 8)
        shares = Counter(spec.env for spec in specs)
        assert shares["B-v0"] in (5, 6)
        totals += shares
        assert {spec.language for spec in specs if spec.env == "B-v0"} == {"zh"}
    assert 44 <= totals["B-v0"] <= 52


def test_an_environment_with_a_short_ladder_stays_on_its_top_rung():
    environments = [{"id": "A-v0"}, {"id": "B-v0"}]
    rule = {"type": "success", "window": 4, "rehearsal": 0.0}
    curriculum = Curriculum(job(environments=environments, curriculum=rule), {"A-v0": 3, "B-v0": 1}, {})
    curriculum.record(won("A-v0", 1, 4))
    assert curriculum.promote(0).level == 2
    assert {(spec.env, spec.level) for spec in curriculum.plan(1, 16)} == {("A-v0", 2), ("B-v0", 1)}
    curriculum.record(won("B-v0", 1, 4))
    assert curriculum.promote(1) is None, "who has no level 2 says nothing about it"
    curriculum.record(won("A-v0", 2, 4))
    assert curriculum.promote(2).level == 3


def test_episodes_of_earlier_levels_do_not_count():
    curriculum = Curriculum(job(curriculum={"type": "success", "window": 4}), {"A-v0": 3}, {})
    curriculum.record(won("A-v0", 1, 4))
    curriculum.promote(0)
    curriculum.record(won("A-v0", 1, 4))
    assert curriculum.promote(1) is None


def test_a_promotion_says_when_where_to_and_why():
    curriculum = Curriculum(job(), {"A-v0": 3}, {})
    assert curriculum.promote(0) is None
    promotion = curriculum.promote(1)
    assert (promotion.step, promotion.level, promotion.reason) == (1, 2, "2 steps on the level")


@pytest.mark.parametrize(("ladder", "max_level", "top"), [(2, None, 2), (5, 3, 3)])
def test_the_level_stops_at_the_top(ladder, max_level, top):
    config = {"type": "length", "every_steps": 1, "max_level": max_level}
    curriculum = Curriculum(job(curriculum=config), {"A-v0": ladder}, {})
    for step in range(9):
        curriculum.promote(step)
    assert curriculum.level == top
    assert len(curriculum.promotions) == top - 1


def test_a_promotion_lifts_the_loss_weights():
    curriculum = Curriculum(job(curriculum={"type": "length", "every_steps": 5}), {"A-v0": 3}, {})
    assert curriculum.loss_weights(4).kl == pytest.approx(0.5)
    curriculum.promote(4)
    assert curriculum.loss_weights(5).kl == pytest.approx(0.6)


def test_a_resumed_curriculum_goes_on_as_the_uninterrupted_one():
    config = {"type": "success", "window": 6}
    whole = Curriculum(job(curriculum=config), {"A-v0": 3}, {})
    whole.record(won("A-v0", 1, 6))
    whole.promote(0)
    whole.record(won("A-v0", 2, 3))
    resumed = Curriculum(job(curriculum=config), {"A-v0": 3}, {})
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for curriculum in (whole, resumed):
        curriculum.record(won("A-v0", 2, 3))
    assert resumed.promote(1) == whole.promote(1)
    assert resumed.plan(2, 8) == whole.plan(2, 8)
    assert resumed.loss_weights(2) == whole.loss_weights(2)
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"type": "fixed", "start_level": 4},
            "start_level is 4, but the environments' ladders end at level 3",
        ),
        ({"type": "fixed", "max_level": 9}, "curriculum.max_level is 9, but the environments' ladders end at level 3"),
    ],
)
def test_a_level_that_no_environment_has_is_refused(config, message):
    with pytest.raises(JobError, match=message):
        Curriculum(job(curriculum=config), {"A-v0": 3}, {})


def test_an_environment_without_a_ladder_is_refused():
    with pytest.raises(JobError, match="no ladder is known for A-v0"):
        Curriculum(job(), {"B-v0": 3}, {})


def test_the_state_of_another_kind_of_curriculum_is_refused():
    state = Curriculum(job(curriculum={"type": "fixed"}), {"A-v0": 3}, {}).state_dict()
    with pytest.raises(JobError, match=r"curriculum\.type is 'length', but the saved state is of 'fixed'"):
        Curriculum(job(), {"A-v0": 3}, {}).load_state_dict(state)
