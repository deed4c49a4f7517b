"""The job file: what a typing error costs, and that a resolved job is the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import JobError, dump_job, load_job

REPO = Path(__file__).resolve().parent.parent
QUICKSTART = REPO / "deploy/jobs/quickstart.yaml"


def refused(*overrides: str) -> str:
    with pytest.raises(JobError) as caught:
        load_job(QUICKSTART, overrides)
    return str(caught.value)


def test_an_unknown_key_is_refused_and_the_nearest_right_one_named() -> None:
    message = refused("rollout.temprature=1")
    assert "rollout.temprature: unknown key; did you mean 'temperature'?" in message
    assert str(QUICKSTART) in message


def test_a_key_like_no_other_is_answered_with_those_that_are_known() -> None:
    assert "known here: decay_from, final, warmup_steps" in refused("learner.schedule.zzz=1")


def test_every_mistake_is_told_at_once() -> None:
    message = refused("steps=0", "rollout.workers=none", "curriculum.success=2")
    assert all(key in message for key in ("steps:", "rollout.workers:", "curriculum.success.success:"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("learner.minibatches=500",), "learner.minibatches (500) is more than rollout.episodes_per_step (48)"),
        (("curriculum.max_level=2",), "curriculum.max_level (2) is below curriculum.start_level (3)"),
        (("rollout.max_turn_tokens=1024",), "leaves no room for a prompt"),
        (("rollout.temperature=0.005",), "rollout.temperature: Input should be greater than or equal to 0.01"),
        (("rollout.temperature=0",), "rollout.temperature: Input should be greater than or equal to 0.01"),
        (("evaluation.temperature=0.005",), "evaluation.temperature must be 0 (greedy) or at least 0.01"),
        (("learner.loss.kl.direction=jsd", "learner.loss.kl.beta=1"), "makes jsd vanish"),
        (
            ("environments=[{id: agentrl/FoodOrder-v0}, {id: agentrl/FoodOrder-v0, kwargs: {compact_tools: false}}]",),
            "agentrl/FoodOrder-v0 is listed twice with other kwargs",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(overrides: tuple[str, ...], said: str) -> None:
    assert said in refused(*overrides)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("steps", "must look like key.sub=value"),
        ("steps.more=1", "steps is a plain value and has no keys"),
        ("environments.7.id=x", "'7' is not one of the indices 0..0"),
        ("steps=[", "the value is not valid YAML"),
    ],
)
def test_an_override_that_cannot_be_applied_says_why(override: str, said: str) -> None:
    assert said in refused(override)


def test_overrides_reach_into_lists_and_into_sections_that_the_file_leaves_out() -> None:
    job = load_job(QUICKSTART, ["environments.0.language=zh", "student.lora.r=4", "cluster.pools=true"])
    assert (job.environments[0].language, job.student.lora and job.student.lora.r, job.cluster.pools) == ("zh", 4, True)


@pytest.mark.parametrize(
    ("text", "said"), [("a: [", "is not valid YAML"), ("- 1", "must be a mapping"), (None, "cannot read the job file")]
)
def test_a_file_that_is_no_job_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(JobError, match=said) as caught:
        load_job(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", sorted((REPO / "deploy/jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_resolved_job_is_the_same_job(path: Path, tmp_path: Path) -> None:
    job = load_job(path, ["seed=7"])
    (tmp_path / "job.yaml").write_text(dump_job(job))
    assert load_job(tmp_path / "job.yaml") == job
