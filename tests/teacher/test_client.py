"""The client: what it tries again, what it does not, how long it waits, and how trajectories get their guidance."""

from __future__ import annotations

import asyncio
import time

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from agentrl.teacher import retrying
from agentrl.teacher.api import create_app
from agentrl.teacher.client import (
    AsyncTeacherClient,
    TeacherClient,
    TeacherError,
    TeacherRefused,
    TeacherUnavailable,
)
from agentrl.teacher.identity import ValueCalibration
from agentrl.teacher.schemas import TurnRequest
from agentrl.types import AssistantMessage, EpisodeSpec, Label, PolicyVersion, Sample, Trajectory, Turn


@pytest.fixture
def no_sleep(monkeypatch):
    """Waits are recorded, not slept."""
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
    return slept


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A service that gives these answers, the last one again and again, and the requests that it saw."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = answers[min(len(seen), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.MockTransport(handle), seen


@pytest.fixture
def good(scorer) -> httpx.Response:
    return httpx.Response(200, json=scorer.identity.model_dump())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_or_broken_service_is_asked_again(no_sleep, good, scorer, status):
    transport, seen = answering(httpx.Response(status), httpx.Response(status), good)
    with TeacherClient("http://teacher", transport=transport) as client:
        assert client.model() == scorer.identity
    assert len(seen) == 3
    assert len(no_sleep) == 2


def test_a_connection_that_breaks_is_made_again(no_sleep, good, scorer):
    transport, seen = answering(httpx.ConnectError("refused"), httpx.ReadError("reset"), good)
    with TeacherClient("http://teacher", transport=transport) as client:
        assert client.model() == scorer.identity
    assert len(seen) == 3


def test_retry_after_is_the_least_that_is_waited(no_sleep, good):
    transport, _ = answering(httpx.Response(429, headers={"Retry-After": "7"}), good)
    with TeacherClient("http://teacher", transport=transport) as client:
        client.model()
    assert len(no_sleep) == 1
    assert 7.0 <= no_sleep[0] < 8.0


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [(None, 0, 0), ("12", 12, 12), ("soon", 0, 0), ("Mon, 01 Jan 2001 00:00:00 GMT", 0, 0), ("+60s", 55, 61)],
)
def test_retry_after_is_seconds_or_a_date(header, low, high):
    if header == "+60s":
        header = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    assert low <= retrying._retry_after_s(header) <= high


def test_all_attempts_fit_into_one_deadline_and_the_error_names_the_last(no_sleep):
    transport, seen = answering(httpx.Response(429, text="queue full", headers={"Retry-After": "50"}))
    with (
        TeacherClient("http://teacher", timeout_s=30.0, transport=transport) as client,
        pytest.raises(
            TeacherUnavailable, match=r"GET http://teacher/v1/model: no good answer within 30 s .*queue full"
        ),
    ):
        client.model()
    assert len(seen) == 1, "a wait of 50 s does not fit into 30 s"
    assert no_sleep == []


def test_a_request_that_is_wrong_is_not_sent_twice(teacher, make_item):
    with pytest.raises(TeacherRefused, match="top_k is 385; it must be 0 to 384") as caught:
        teacher.score([make_item(6, (1, 3), top_k=385)])
    assert caught.value.status == 422
    assert caught.value.problem["limit"] == 384


def test_an_answer_that_is_something_else_is_an_error():
    transport, _ = answering(httpx.Response(200, text="<html>"))
    with TeacherClient("http://teacher", transport=transport) as client, pytest.raises(TeacherError, match="something"):
        client.model()


def test_the_key_is_sent_and_not_shown(scorer, transport):
    with TestClient(create_app(scorer, keys=("s3cret",)), client=("203.0.113.9", 1)) as app:
        with TeacherClient("http://teacher", api_key="s3cret", transport=transport(app)) as client:
            assert client.model() == scorer.identity
        with TeacherClient("http://teacher", api_key="s3cret, other", transport=transport(app)) as client:
            assert client.model() == scorer.identity
            assert "s3cret" not in repr(client) + repr(vars(client)["_http"])
        with (
            TeacherClient("http://teacher", transport=transport(app)) as client,
            pytest.raises(TeacherRefused) as error,
        ):
            client.model()
    assert error.value.status == 401


def test_a_proxy_of_the_environment_does_not_stand_before_loopback(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://203.0.113.1:1")
    client = TeacherClient("http://127.0.0.1:9")
    assert client._http._mounts == {}
    assert TeacherClient("http://teacher.example")._http._mounts != {}


def test_a_turn_is_played_through_the_client(teacher):
    answer = teacher.turn(
        TurnRequest.model_validate({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    )
    assert 1 <= len(answer.tokens) <= 2


def test_the_asynchronous_client_asks_the_same(scorer, teacher, make_item, http):
    item = make_item(30, (2, 9))

    def forward(request: httpx.Request) -> httpx.Response:
        answer = http.request(request.method, request.url.path, content=request.content, headers=dict(request.headers))
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    async def ask():
        async with AsyncTeacherClient("http://127.0.0.1", transport=httpx.MockTransport(forward)) as client:
            return await client.model(), await client.score([item])

    identity, [scores] = asyncio.run(ask())
    assert identity == scorer.identity
    [blocking] = teacher.score([item])
    assert scores.support_ids_n_k.tolist() == blocking.support_ids_n_k.tolist()


def turn(index: int, sample: int, start: int, end: int, author: str = "student") -> Turn:
    version = PolicyVersion(0)
    return Turn(
        index, sample, start, end, author, (version, version), AssistantMessage(), "", "stop", (), 0.0, {}, Label.OK,
        False, 0, "",
    )  # fmt: skip


def sample(length: int, trainable: list[tuple[int, int]], seed: int) -> Sample:
    mask_T = np.zeros(length, bool)
    for start, end in trainable:
        mask_T[start:end] = True
    tokens_T = np.random.default_rng(seed).integers(0, 384, length, dtype=np.int32)
    return Sample(tokens_T, np.full(length, -1, np.int16), np.full(length, np.nan, np.float32), mask_T)


def trajectory(samples: list[Sample], turns: list[Turn], failure: str | None = None) -> Trajectory:
    spec = EpisodeSpec("episode-7", "env", 1, 0, 0)
    return Trajectory(spec, (), [], samples, turns, True, False, True, "", 1, 0.0, failure)


@pytest.fixture
def dialogue() -> Trajectory:
    """Two samples; an injected turn stands between the student's in the first."""
    return trajectory(
        [sample(60, [(10, 14), (40, 45)], seed=1), sample(30, [(20, 26)], seed=2)],
        [turn(0, 0, 10, 14), turn(1, 0, 20, 24, "injected"), turn(2, 0, 40, 45), turn(3, 1, 20, 26)],
    )


def test_guidance_is_there_for_every_turn_with_trainable_tokens_and_for_no_other(teacher, dialogue):
    stats = teacher.guide([dialogue], top_k=8, temperature=1.0)
    assert [None if g is None else g.turn for g in dialogue.guidance] == [0, None, 2, 3]
    for guidance, t in zip(dialogue.guidance, dialogue.turns, strict=True):
        if guidance is not None:
            assert guidance.support_ids_nk.shape == guidance.support_logprobs_nk.shape
            assert len(guidance.support_ids_nk) == len(guidance.tail_logprobs_n) == t.end - t.start
            assert guidance.support_ids_nk.dtype == np.int32
            assert guidance.support_logprobs_nk.dtype == np.float32
    assert (stats.requests, stats.turns, stats.positions) == (1, 3, 15)
    assert stats.tokens == 45 + 26, "a sample is sent up to its last asked turn"
    assert stats.bytes_sent > stats.tokens * 4
    assert stats.bytes_received > 15 * 9 * 8
    assert 0 < stats.mass_on_support < 1


def test_guidance_is_the_teachers_own_distribution(teacher, dialogue, oracle):
    teacher.guide([dialogue], top_k=6, temperature=2.0)
    for guidance in filter(None, dialogue.guidance):
        t = dialogue.turns[guidance.turn]
        tokens_T = dialogue.samples[t.sample].token_ids_T
        exact_n_V = oracle(tokens_T, 2.0)[t.start - 1 : t.end - 1]
        for row in range(t.end - t.start):
            ids = guidance.support_ids_nk[row]
            ids = ids[ids >= 0]
            assert tokens_T[t.start + row] in ids
            np.testing.assert_allclose(guidance.support_logprobs_nk[row, : len(ids)], exact_n_V[row, ids], atol=2e-5)


def test_many_small_requests_give_what_one_gives(teacher):
    def fresh():
        return [trajectory([sample(40 + i, [(5, 9)], seed=i)], [turn(0, 0, 5, 9)]) for i in range(12)]

    one, many = fresh(), fresh()
    assert teacher.guide(one, top_k=4, temperature=1.0).requests == 1
    assert teacher.guide(many, top_k=4, temperature=1.0, request_tokens=20, in_flight=3).requests == 6
    for a, b in zip(one, many, strict=True):
        assert a.guidance[0].support_ids_nk.tolist() == b.guidance[0].support_ids_nk.tolist()
        np.testing.assert_allclose(a.guidance[0].tail_logprobs_n, b.guidance[0].tail_logprobs_n, atol=2e-5)


def test_a_failed_trajectory_is_not_asked_about(teacher, dialogue):
    dialogue.failure = "the environment died"
    assert teacher.guide([dialogue], top_k=4, temperature=1.0).requests == 0
    assert dialogue.guidance == [None] * 4


def test_no_trajectories_need_no_request(teacher):
    stats = teacher.guide([], top_k=4, temperature=1.0)
    assert stats.requests == 0
    assert np.isnan(stats.mass_on_support)


def test_the_students_ids_can_be_named_for_the_reverse_kl(teacher, dialogue):
    def students(t: Trajectory, turn: Turn) -> np.ndarray:
        return np.full((turn.end - turn.start, 2), [300, 301], np.int32)

    teacher.guide([dialogue], top_k=0, temperature=1.0, ids_per_position=students)
    for guidance in filter(None, dialogue.guidance):
        assert all({300, 301} <= set(ids) for ids in guidance.support_ids_nk.tolist())
        assert guidance.support_ids_nk.shape[1] <= 3


def test_named_ids_of_another_length_are_refused_by_turn(teacher, dialogue):
    with pytest.raises(ValueError, match=r"shape \(1, 1\) for turn 0 of episode-7, which has 4 tokens"):
        teacher.guide([dialogue], 4, 1.0, ids_per_position=lambda t, turn: np.zeros((1, 1), np.int32))


def test_top_k_above_the_vocabulary_means_all_of_it(teacher, dialogue):
    stats = teacher.guide([dialogue], top_k=10_000, temperature=1.0)
    assert stats.mass_on_support == 1.0
    assert dialogue.guidance[0].support_ids_nk.shape == (4, 384)


def test_a_calibrated_teachers_values_are_kept_and_another_ones_are_left_out(teacher, dialogue, scorer, monkeypatch):
    teacher.guide([dialogue], top_k=4, temperature=1.0)
    assert isinstance(dialogue.guidance[0].value, float)
    uncalibrated = scorer.identity.model_copy(update={"value": ValueCalibration(gamma=0.9, calibrated=False)})
    monkeypatch.setattr(scorer, "identity", uncalibrated)
    teacher._identity = None
    teacher.guide([dialogue], top_k=4, temperature=1.0)
    assert dialogue.guidance[0].value is None


def test_when_one_request_fails_no_guidance_has_changed(no_sleep, scorer, dialogue, http, transport):
    calls = 0
    inner = transport(http)

    def second_fails(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += request.url.path == "/v1/score"
        return httpx.Response(422, json={"detail": "no"}) if calls == 2 else inner.handle_request(request)

    transport = httpx.MockTransport(second_fails)
    with TeacherClient("http://127.0.0.1", transport=transport) as client, pytest.raises(TeacherRefused):
        client.guide([dialogue], 4, 1.0, request_tokens=1, in_flight=1)
    assert dialogue.guidance == []
