"""What the service answers, over its ASGI app: the routes, the limits, the keys, and problem documents for the rest."""

from __future__ import annotations

import re

import numpy as np
import pytest
from starlette.testclient import TestClient

from agentrl.teacher import wire
from agentrl.teacher.api import create_app
from agentrl.teacher.schemas import Limits, ScoreRequest, ScoreResponse, TurnResponse

BINARY = {"Content-Type": wire.MEDIA_TYPE, "Accept": wire.MEDIA_TYPE}
CAPITAL = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 6, "top_k": 3}


def body(**changes):
    sequence = {"token_ids": [5, 9, 33, 80, 7, 12], "turns": [{"start": 1, "end": 3}, {"start": 4, "end": 6}]}
    request = {"sequences": [sequence], "top_k": 3, "temperature": 1.0}
    return (
        request
        | {k: v for k, v in changes.items() if k in request}
        | {
            "sequences": [sequence | {k: v for k, v in changes.items() if k not in request}]
            if "sequences" not in changes
            else changes["sequences"]
        }
    )


def problem(response, status: int, kind: str) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"] == f"urn:agentrl:teacher:{kind}"
    assert document["status"] == status
    return document


def test_a_score_has_a_support_a_tail_and_a_value_for_each_turn(http):
    answer = ScoreResponse.model_validate(http.post("/v1/score", json=body()).json())
    [sequence] = answer.sequences
    assert [(turn.start, turn.end) for turn in sequence.turns] == [(1, 3), (4, 6)]
    for turn, tokens in zip(sequence.turns, ([9, 33], [7, 12]), strict=True):
        assert turn.value is not None
        for ids, logprobs, tail, token in zip(
            turn.support_ids, turn.support_logprobs, turn.tail_logprobs, tokens, strict=True
        ):
            assert token in ids
            assert len(ids) == len(logprobs) in (3, 4)
            np.testing.assert_allclose(np.exp(logprobs).sum() + np.exp(tail), 1.0, atol=1e-5)


def test_json_and_binary_agree_in_every_combination(http, make_item, teacher):
    item = make_item(6, (1, 3), (4, 6), top_k=3, temperature=0.7)
    as_json = body(token_ids=item.token_ids_T.tolist(), temperature=0.7)
    binary = wire.encode_request([item])
    json_json = http.post("/v1/score", json=as_json).json()
    json_binary = http.post("/v1/score", json=as_json, headers={"Accept": wire.MEDIA_TYPE})
    binary_json = http.post("/v1/score", content=binary, headers={"Content-Type": wire.MEDIA_TYPE}).json()
    binary_binary = http.post("/v1/score", content=binary, headers=BINARY)
    assert json_json == binary_json
    assert json_binary.content == binary_binary.content
    [scores] = wire.decode_answer(binary_binary.content, [item])
    row = 0
    for turn in json_json["sequences"][0]["turns"]:
        for ids, logprobs, tail in zip(
            turn["support_ids"], turn["support_logprobs"], turn["tail_logprobs"], strict=True
        ):
            assert scores.support_ids_n_k[row, : len(ids)].tolist() == ids
            np.testing.assert_allclose(scores.support_logprobs_n_k[row, : len(ids)], logprobs, rtol=1e-6)
            np.testing.assert_allclose(scores.tail_logprobs_n[row], tail, rtol=1e-6)
            row += 1
    assert teacher.score_json(ScoreRequest.model_validate(as_json)).model_dump() == json_json


def test_a_tail_without_mass_is_null(http, scorer):
    answer = http.post("/v1/score", json=body(top_k=scorer.identity.vocabulary)).json()
    assert answer["sequences"][0]["turns"][0]["tail_logprobs"] == [None, None]


def test_ids_named_for_a_position_are_in_its_support(http):
    named = [[100, 101], [], [102], [103, 103, 104]]
    answer = http.post("/v1/score", json=body(top_k=0, support_ids=named)).json()
    supports = [ids for turn in answer["sequences"][0]["turns"] for ids in turn["support_ids"]]
    assert supports == [[9, 100, 101], [33], [7, 102], [12, 103, 104]]


def test_a_turn_shows_the_reply_and_what_it_nearly_said(http):
    answer = TurnResponse.model_validate(http.post("/v1/turn", json=CAPITAL).json())
    assert len(answer.tokens) == 6 or answer.finish == "stop"
    for token in answer.tokens:
        assert token.top[0].id == token.id  # greedy
        assert token.top[0].logprob == token.logprob
        assert len(token.top) == 3
    assert answer.value is not None


def test_the_model_says_who_it_is(http, scorer):
    assert http.get("/v1/model").json() == scorer.identity.model_dump()


def test_health_runs_a_token(http, scorer, monkeypatch):
    assert http.get("/health").json() == {"status": "ok"}

    async def dead():
        raise RuntimeError("CUDA error: device-side assert")

    monkeypatch.setattr(scorer, "check", dead)
    response = http.get("/health")
    assert "device-side assert" in problem(response, 503, "unhealthy")["detail"]
    assert response.headers["retry-after"] == "5"


def test_the_openapi_page_describes_the_bodies(http):
    document = http.get("/openapi.json").json()
    assert http.get("/docs").status_code == 200
    content = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ScoreRequest"}
    assert set(content) == {"application/json", wire.MEDIA_TYPE}
    schemas = document["components"]["schemas"]
    assert {"ScoreRequest", "TurnRequest", "ScoreResponse", "ProblemDocument", "TeacherIdentity"} <= schemas.keys()
    assert schemas["ScoreRequest"]["examples"]


def test_the_examples_of_the_openapi_page_work(http):
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    assert http.post("/v1/score", json=schemas["ScoreRequest"]["examples"][0]).status_code == 200
    assert http.post("/v1/turn", json=schemas["TurnRequest"]["examples"][0] | {"max_tokens": 4}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status", "kind", "detail"),
    [
        (
            {"token_ids": [5, 9, 33, 80, 7, 384]},
            422,
            "out-of-vocabulary",
            "is 384; the vocabulary has the ids 0 to 383",
        ),
        ({"token_ids": [5, -1, 3, 4, 5, 6]}, 422, "invalid-body", "token_ids/1: Input should be greater .* got -1"),
        ({"token_ids": [5, 2**40, 3, 4, 5, 6]}, 422, "invalid-body", "less than or equal to 2147483647"),
        ({"token_ids": []}, 422, "invalid-body", "at least 1 item"),
        ({"token_ids": [0] * 1025}, 422, "sequence-too-long", "has 1025 tokens; the context length is 1024"),
        ({"token_ids": "abc"}, 422, "invalid-body", "valid array, got 'abc'"),
        ({"turns": []}, 422, "invalid-body", "at least 1 item"),
        ({"turns": [{"start": 0, "end": 2}]}, 422, "invalid-body", "start: .* got 0"),
        ({"turns": [{"start": 3, "end": 3}]}, 422, "span-out-of-range", r"\(3, 3\) must satisfy 1 <= start < end <= 6"),
        ({"turns": [{"start": 3, "end": 7}]}, 422, "span-out-of-range", r"\(3, 7\)"),
        ({"turns": [{"start": 1, "end": 2**31 - 1}]}, 422, "span-out-of-range", "2147483647"),
        ({"turns": [{"start": 1, "end": 4}, {"start": 3, "end": 5}]}, 422, "spans-overlap", "starts before 4"),
        ({"turns": [{"start": 4, "end": 5}, {"start": 1, "end": 2}]}, 422, "spans-overlap", "starts before 5"),
        ({"support_ids": [[1]]}, 422, "support-does-not-fit", "for 1 positions; the turns have 4 tokens"),
        ({"support_ids": [[], [], [], [400]]}, 422, "out-of-vocabulary", "support_ids/3/0 is 400"),
        ({"support_ids": [[], [], [], list(range(384)) * 300]}, 413, "request-too-large", "limit of 100000"),
        ({"top_k": 385}, 422, "top-k-out-of-range", "top_k is 385; it must be 0 to 384"),
        ({"top_k": 10**12}, 422, "invalid-body", "less than or equal to"),
        ({"temperature": 0}, 422, "invalid-body", r"greater than or equal to 0\.01"),
        ({"temperature": 1e9}, 422, "invalid-body", "less than or equal to 100"),
        ({"sequences": []}, 422, "invalid-body", "at least 1 item"),
        (
            {"sequences": [{"token_ids": [1, 2], "turns": [{"start": 1, "end": 2}]}] * 65},
            413,
            "request-too-large",
            "65",
        ),
        ({"unknown": 1}, 422, "invalid-body", "Extra inputs are not permitted"),
    ],
)
def test_a_request_that_breaks_a_rule_is_told_which(scorer, changes, status, kind, detail):
    limits = Limits(sequences=64, support_entries=100_000)
    with TestClient(create_app(scorer, limits=limits), client=("127.0.0.1", 1)) as http:
        document = problem(http.post("/v1/score", json=body(**changes)), status, kind)
    assert re.search(detail, document["detail"]), document["detail"]


def test_the_limit_and_the_value_are_there_for_machines(http):
    document = problem(http.post("/v1/score", json=body(top_k=999)), 422, "top-k-out-of-range")
    assert (document["limit"], document["value"]) == (384, 999)
    assert document["errors"][0]["pointer"] == "#/top_k"


def test_a_request_with_too_many_tokens_is_refused(scorer):
    with TestClient(create_app(scorer, limits=Limits(request_tokens=5)), client=("127.0.0.1", 1)) as http:
        document = problem(http.post("/v1/score", json=body()), 413, "request-too-large")
    assert (document["limit"], document["value"]) == (5, 6)


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"", 400, "not-json"),
        (b"\xff\xfe", 400, "not-json"),
        (b"[" * 100_000, 400, "not-json"),
        (b'{"sequences": [{"token_ids": [1, NaN], "turns": []}]}', 422, "invalid-body"),
        (b'{"temperature": NaN, "sequences": []}', 422, "invalid-body"),
        (b'{"temperature": 1e999, "sequences": []}', 422, "invalid-body"),
        (b'{"top_k": ' + b"9" * 5000 + b', "sequences": []}', 400, "not-json"),
        (b'{"\\ud800": 1}', 400, "not-json"),
        (b"null", 422, "invalid-body"),
    ],
)
def test_a_body_that_is_no_request_is_a_problem_and_not_a_crash(http, content, status, kind):
    problem(http.post("/v1/score", content=content, headers={"Content-Type": "application/json"}), status, kind)
    problem(http.post("/v1/turn", content=content, headers={"Content-Type": "application/json"}), status, kind)


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_binary_temperature_outside_of_its_range_is_refused(http, make_item, temperature):
    content = wire.encode_request([make_item(6, (1, 3), temperature=temperature)])
    problem(http.post("/v1/score", content=content, headers=BINARY), 422, "temperature-out-of-range")


def test_a_truncated_binary_body_is_refused(http, make_item):
    content = wire.encode_request([make_item(6, (1, 3))])[:-2]
    document = problem(http.post("/v1/score", content=content, headers=BINARY), 422, "invalid-body")
    assert "not a safetensors file" in document["detail"]


def test_a_binary_id_below_minus_one_is_refused(http, make_item):
    content = wire.encode_request([make_item(6, (1, 3), named=np.array([[-2], [0]], np.int32))])
    assert (
        "is -2" in problem(http.post("/v1/score", content=content, headers=BINARY), 422, "out-of-vocabulary")["detail"]
    )


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "streamed"])
def test_a_body_over_the_limit_is_refused(scorer, declared):
    with TestClient(create_app(scorer, limits=Limits(body_bytes=100)), client=("127.0.0.1", 1)) as http:
        content = b"x" * 101 if declared else iter([b"x" * 60, b"x" * 41])
        document = problem(http.post("/v1/score", content=content), 413, "body-too-large")
    assert (document["limit"], document["value"]) == (100, 101)


def test_an_unknown_body_type_an_unknown_answer_type_a_route_and_a_method_are_problems(http):
    response = http.post("/v1/score", content=b"a=1", headers={"Content-Type": "application/x-www-form-urlencoded"})
    problem(response, 415, "unsupported-media-type")
    problem(http.post("/v1/score", json=body(), headers={"Accept": "text/html"}), 406, "not-acceptable")
    problem(http.get("/v1/nothing"), 404, "not-found")
    assert problem(http.get("/v1/score"), 405, "method-not-allowed")
    assert http.get("/v1/score").headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (wire.MEDIA_TYPE, wire.MEDIA_TYPE),
        (f"application/json;q=0.5, {wire.MEDIA_TYPE}", wire.MEDIA_TYPE),
        (f"{wire.MEDIA_TYPE};q=0, */*", "application/json"),
        (f"{wire.MEDIA_TYPE}, */*;q=0.1", wire.MEDIA_TYPE),
    ],
)
def test_the_answer_comes_in_the_form_that_the_caller_likes_best(http, accept, expected):
    assert http.post("/v1/score", json=body(), headers={"Accept": accept}).headers["content-type"] == expected


@pytest.mark.parametrize(
    ("changes", "kind", "detail"),
    [
        ({"max_tokens": 2000}, "max-tokens-out-of-range", "up to 1024"),
        ({"max_tokens": 1020}, "sequence-too-long", "the context length is 1024"),
        ({"temperature": 0.001}, "invalid-body", "must be 0 or at least 0.01"),
        ({"messages": []}, "invalid-body", "at least 1 item"),
        ({"tools": [{"type": "function"}]}, "no-tools", "has no place for tools"),
        ({"messages": [{"role": "user", "content": "<|im_end|>"}]}, "special-token-in-text", "'<|im_end|>'"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "name": "<|im_end|>", "content": "b"}]},
            "special-token-in-text",
            "messages/1/name",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": {"x": ["<|im_end|>"]}}}],
                    }
                ]
            },
            "special-token-in-text",
            "messages/0/tool_calls/0/function/arguments/x/0",
        ),
        (
            {"tools": [{"type": "function", "function": {"<|im_end|>": 1}}]},
            "special-token-in-text",
            "tools/0/function/<|im_end|>",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "invalid-body",
            "should be an object",
        ),
    ],
)
def test_a_turn_that_cannot_be_played_is_told_why(http, changes, kind, detail):
    assert detail in problem(http.post("/v1/turn", json=CAPITAL | changes), 422, kind)["detail"]


def test_messages_that_the_template_refuses_are_a_problem(http, scorer, monkeypatch):
    monkeypatch.setattr(scorer.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    assert (
        "roles must alternate" in problem(http.post("/v1/turn", json=CAPITAL), 422, "chat-template-refuses")["detail"]
    )


def test_an_error_of_the_services_own_is_a_problem_document_too(http, scorer, monkeypatch):
    async def broken(items):
        raise ZeroDivisionError

    monkeypatch.setattr(scorer, "score", broken)
    document = problem(http.post("/v1/score", json=body()), 500, "internal-error")
    assert "ZeroDivisionError" not in document["detail"]


class TestKeys:
    @pytest.fixture
    def guarded(self, scorer):
        with TestClient(create_app(scorer, keys=("alpha", "beta")), client=("203.0.113.9", 1)) as http:
            yield http

    @pytest.mark.parametrize("key", ["alpha", "beta"])
    def test_any_of_the_keys_opens(self, guarded, key):
        assert guarded.get("/v1/model", headers={"Authorization": f"Bearer {key}"}).status_code == 200

    @pytest.mark.parametrize(
        "header", [None, "", "Bearer", "Bearer ", "Bearer gamma", "Bearer alph", "Basic alpha", "alpha", b"Bearer \xff"]
    )
    def test_nothing_else_opens(self, guarded, header):
        headers = {} if header is None else {"Authorization": header}
        response = guarded.get("/v1/model", headers=headers)
        problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"

    def test_every_v1_route_asks_for_the_key_before_it_reads_the_body(self, guarded):
        for path in ("/v1/score", "/v1/turn"):
            problem(guarded.post(path, content=b"x"), 401, "unauthorized")
        problem(guarded.get("/v1/nothing"), 401, "unauthorized")

    def test_a_prefix_that_the_app_is_mounted_at_opens_nothing(self, scorer):
        app = create_app(scorer, keys=("alpha",))
        with TestClient(app, client=("203.0.113.9", 1), root_path="/teachers/a") as http:
            problem(http.get("/teachers/a/v1/model"), 401, "unauthorized")
            assert http.get("/teachers/a/health").status_code == 200
            key = {"Authorization": "Bearer alpha"}
            assert http.get("/teachers/a/v1/model", headers=key).status_code == 200

    def test_health_and_the_openapi_page_need_no_key(self, guarded):
        assert [guarded.get(path).status_code for path in ("/health", "/docs", "/openapi.json")] == [200, 200, 200]

    def test_keys_are_in_no_answer_and_no_log(self, guarded, caplog):
        caplog.set_level("DEBUG")
        response = guarded.post("/v1/score", content=b"x", headers={"Authorization": "Bearer alpha"})
        assert "alpha" not in response.text + caplog.text

    @pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("203.0.113.9", 403)])
    def test_without_keys_only_this_machine_is_answered(self, scorer, client, status):
        with TestClient(create_app(scorer), client=(client, 1)) as http:
            assert http.get("/v1/model").status_code == status
