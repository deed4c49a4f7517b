"""The curriculum behind Ray: the same answers, also after its process has died."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from agentrl.config import JobError, parse_job
from agentrl.curriculum.actor import CurriculumHandle, CurriculumSilent
from agentrl.curriculum.curriculum import Curriculum
from agentrl.types import Outcome

pytestmark = pytest.mark.ray

JOB = parse_job(
    {
        "name": "t",
        "environments": [{"id": "A-v0"}],
        "student": {"path": "s"},
        "teacher": {"scorer": {"type": "hf", "path": "t"}},
        "curriculum": {"type": "success", "window": 4},
    }
)
WON = [Outcome("A-v0", 1, True, 4, 4)] * 4


def test_the_actor_answers_as_the_plain_curriculum_does(ray_cluster):
    plain, handle = Curriculum(JOB, {"A-v0": 3}, {}), CurriculumHandle(JOB, {"A-v0": 3}, {})
    for curriculum in (plain, handle):
        curriculum.record(WON)
    assert handle.promote(0) == plain.promote(0)
    assert handle.plan(1, 4) == plain.plan(1, 4)
    assert handle.loss_weights(1) == plain.loss_weights(1)
    assert handle.state_dict() == plain.state_dict()
    handle.close()


def test_a_killed_actor_comes_back_where_it_was(ray_cluster):
    handle = CurriculumHandle(JOB, {"A-v0": 3}, {})
    handle.record(WON)
    handle.promote(0)
    before = handle.plan(1, 4)
    ray.kill(handle._actor)
    assert handle.plan(1, 4) == before
    assert handle.level == 2
    handle.close()


def test_a_wrong_job_is_refused_where_it_is_started(ray_cluster):
    with pytest.raises(JobError, match="no ladder is known for A-v0"):
        CurriculumHandle(JOB, {}, {})


def test_an_actor_that_does_not_answer_is_a_failure_that_says_how_to_go_on(ray_cluster):
    handle = CurriculumHandle(JOB, {"A-v0": 3}, {}, timeout_s=0.2)
    pid = ray.get(handle._actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CurriculumSilent, match=r"did not answer plan within 0\.2 s.*--resume"):
            handle.plan(0, 4)
    finally:
        os.kill(pid, signal.SIGCONT)
        handle.close()
