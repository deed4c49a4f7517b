"""The teacher on a real Ray Serve, over HTTP."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from agentrl.config import HfTeacher, TeacherService
from agentrl.teacher.client import TeacherClient, identity_of
from agentrl.teacher.server import TeacherStartError, service

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def url(ray_cluster, teacher_dir: Path):
    with service(TeacherService(scorer=HfTeacher(path=str(teacher_dir)), port=0)) as url:
        yield url


def test_a_teacher_that_cannot_load_its_model_says_so_and_leaves_nothing_behind(ray_cluster, tmp_path):
    from ray import serve

    config = TeacherService(scorer=HfTeacher(path=str(tmp_path / "nothing")), port=0)
    with pytest.raises(TeacherStartError, match="could not start"), service(config):
        pytest.fail("the block was entered")
    assert not serve.status().applications


def test_the_service_answers_what_the_scorer_in_process_answers(url, teacher, make_item):
    item = make_item(40, (3, 9), (20, 40), top_k=5, temperature=0.7)
    with TeacherClient(url) as client:
        [served] = client.score([item])
    [local] = teacher.score([item])
    assert served.support_ids_n_k.tolist() == local.support_ids_n_k.tolist()
    np.testing.assert_allclose(served.support_logprobs_n_k, local.support_logprobs_n_k, atol=2e-5)
    np.testing.assert_allclose(served.values_K, local.values_K, atol=2e-5)


def test_the_handshake_passes_over_http(url, scorer):
    with TeacherClient(url) as client:
        identity = client.handshake(identity_of(scorer.tokenizer, 512, gamma=0.9))
    assert identity.weights_sha256 == scorer.identity.weights_sha256


def test_json_over_http_and_a_bad_request(url):
    good = {"sequences": [{"token_ids": [1, 2, 3], "turns": [{"start": 1, "end": 3}]}], "top_k": 2}
    assert httpx.post(f"{url}/v1/score", json=good, timeout=30).status_code == 200
    bad = httpx.post(f"{url}/v1/score", json=good | {"top_k": 999}, timeout=30)
    assert bad.status_code == 422
    assert bad.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{url}/docs", timeout=30).status_code == 200


def test_a_full_queue_answers_429_with_retry_after_and_the_client_comes_back(ray_cluster, url, teacher_dir, make_item):
    from ray import serve

    from agentrl.teacher.app import build

    args = {"scorer": {"type": "hf", "path": str(teacher_dir)}, "max_ongoing_requests": 1, "max_queued_requests": 1}
    serve.run(build(args), name="narrow", route_prefix="/narrow")
    try:
        narrow = f"{url}/narrow"
        slow = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, "temperature": 5.0}

        def ask(seed: int) -> httpx.Response:
            return httpx.post(f"{narrow}/v1/turn", json=slow | {"seed": seed}, timeout=60)

        with ThreadPoolExecutor(12) as pool, TeacherClient(narrow, timeout_s=60) as client:
            answers = pool.map(ask, range(12))
            scores = list(pool.map(lambda seed: client.score([make_item(20, (1, 20), seed=seed)]), range(12)))
            refused = [answer for answer in answers if answer.status_code == 429]
        assert refused, "twelve requests at once overflow one place and a queue of one"
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert len(scores) == 12
    finally:
        serve.delete("narrow")


def test_a_port_that_another_program_has_is_an_error_that_names_it(ray_cluster, teacher_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = TeacherService(scorer=HfTeacher(path=str(teacher_dir)), port=port)
        with pytest.raises(TeacherStartError, match=rf"cannot listen on 127\.0\.0\.1:{port}"), service(config):
            pytest.fail("the block was entered")
