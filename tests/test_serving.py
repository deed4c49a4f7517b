"""`agentrl teacher serve`: the teacher of a job is up while the block runs, and needs no student."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from agentrl.config import parse_job
from agentrl.serving import serving


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_jobs_teacher_answers_and_then_is_gone(ray_cluster, tiny_model_dir: Path) -> None:
    teacher = {"scorer": {"path": str(tiny_model_dir)}, "port": 0}
    job = parse_job({"name": "t", "environments": [{}], "student": {"path": "gone"}, "teacher": teacher})
    scored = {"sequences": [{"token_ids": [1, 2, 3], "turns": [{"start": 1, "end": 3}]}], "top_k": 2}
    with serving(job) as url:
        assert httpx.post(f"{url}/v1/score", json=scored, timeout=60).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", timeout=5)
