"""The job file: what a typing error costs, and that a resolved job is the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import JobError, dump_job, load_job

REPO = Path(__file__).resolve().parent.parent
QUICKSTART = REPO / "deploy/jobs/quickstart.yaml"

#: a job that leaves out whatever has a default
MINIMAL = """\
name: minimal
environments: [{id: agentrl/FoodOrder-v0}]
student: {path: s}
teacher: {scorer: {path: t}}
"""


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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("temperature=3", "temperature: unknown key; there is evaluation.temperature and learner.loss.kl.temperature"),
        ("learner.lr=3", "learner.lr: unknown key; there is learner.loss.value.lr and learner.optimizer.lr"),
        ("language=zh", "language: unknown key; there is environments.0.language"),
        ("rollout.max_num_seqs=3", "there is rollout.engine.max_num_seqs (rollout.engine.type=vllm)"),
        ("curriculum.every_steps=3", "curriculum.every_steps (curriculum.type=length) and evaluation.every_steps"),
    ],
)
def test_a_key_in_the_wrong_place_is_answered_with_its_right_ones(override: str, said: str) -> None:
    assert said in refused(override)


@pytest.mark.parametrize(
    ("override", "section", "said"),
    [
        ("learner.optimizer.lr=1e-3", "learner", {"lr": 1e-3, "type": "adamw"}),
        ("curriculum.window=50", "curriculum", {"window": 50, "type": "success"}),
        ("rollout.engine.max_num_seqs=5", "rollout", {"max_num_seqs": 5, "type": "vllm"}),
    ],
)
def test_a_section_that_does_not_say_its_type_has_the_defaults(
    tmp_path: Path, override: str, section: str, said: dict
) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL)
    found = load_job(tmp_path / "job.yaml", [override]).model_dump()[section]
    found = found.get(override.split(".")[1], found)
    assert {key: found[key] for key in said} == said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.engine.max_num_seq=5", "rollout.engine.max_num_seq: unknown key; did you mean 'max_num_seqs'?"),
        ("rollout.engine.typ=vllm", "rollout.engine.typ: unknown key; did you mean 'type'?"),
        ("rollout.engine.type=vlm", "rollout.engine.type: unknown type 'vlm'; did you mean 'vllm'?"),
        ("learner.optimizer={type: sgd}", "learner.optimizer.type: unknown type 'sgd'; known here: adamw, muon"),
    ],
)
def test_a_mistake_in_a_section_with_a_type_is_told_as_any_other(override: str, said: str) -> None:
    assert said in refused(override)


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("steps=true", "steps"),
        ("steps='3'", "steps"),
        ("learner.optimizer.lr=.inf", "learner.optimizer.lr"),
        ("learner.optimizer.lr=true", "learner.optimizer.lr"),
        ("rollout.temperature=.nan", "rollout.temperature"),
        ("evaluation.levels=[]", "evaluation.levels"),
        ("evaluation.confidence=0", "evaluation.confidence"),
        ("evaluation.confidence=1", "evaluation.confidence"),
    ],
)
def test_a_value_that_only_looks_like_one_is_refused(override: str, where: str) -> None:
    assert f"  {where}: " in refused(override)


def test_a_key_that_is_there_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"{MINIMAL}steps: 3\nseed: 1\nsteps: 4\n")
    with pytest.raises(JobError, match=r"the key 'steps' is there twice(.|\n)*line 7"):
        load_job(tmp_path / "job.yaml")
    assert "the key 'r' is there twice" in refused("student.lora={r: 1, r: 2}")


def test_every_mistake_is_told_at_once() -> None:
    message = refused("steps=0", "rollout.workers=none", "curriculum.success=2")
    assert all(key in message for key in ("steps:", "rollout.workers:", "curriculum.success:"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("learner.minibatches=500",), "learner.minibatches (500) is more than rollout.episodes_per_step (48)"),
        (("curriculum.max_level=2",), "curriculum.max_level (2) is below curriculum.start_level (3)"),
        (("rollout.max_turn_tokens=1024",), "leaves no room for a prompt"),
        (
            ("learner.loss.ppo.credit=token", "learner.loss.ppo.gamma=0.9"),
            "set ppo.gamma to 1, ppo.credit to turn or value.teacher_weight to 0",
        ),
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
