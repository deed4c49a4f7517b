"""No body whatever makes the service answer with a 5xx."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from agentrl.teacher import wire

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

number = st.one_of(st.integers(-2, 400), st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=3))
span = st.one_of(st.fixed_dictionaries({"start": number, "end": number}), number)
sequence = st.fixed_dictionaries(
    {"token_ids": st.lists(number, max_size=8), "turns": st.lists(span, max_size=3)},
    optional={"support_ids": st.lists(st.one_of(st.lists(number, max_size=3), number), max_size=4)},
)
near_score = st.fixed_dictionaries(
    {"sequences": st.lists(st.one_of(sequence, number), max_size=3)}, optional={"top_k": number, "temperature": number}
)
anything = st.recursive(number, lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x), max_leaves=8)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "other"])},
    optional={
        "content": st.one_of(st.none(), st.text(max_size=20)),
        "name": st.text(max_size=3),
        "tool_calls": anything,
    },
)
near_turn = st.fixed_dictionaries(
    {"messages": st.lists(message, max_size=3), "max_tokens": st.integers(-1, 3)},
    optional={"top_k": number, "temperature": number, "seed": number, "tools": anything},
)


def check(response):
    assert response.status_code < 500, response.text
    kind = "application/problem+json" if response.status_code >= 400 else "application/"
    assert response.headers["content-type"].startswith(kind)


@FUZZ
@given(near_score)
def test_score_json(http, request_body):
    check(http.post("/v1/score", content=json.dumps(request_body), headers={"Content-Type": "application/json"}))


@FUZZ
@given(near_turn)
def test_turn_json(http, request_body):
    check(http.post("/v1/turn", content=json.dumps(request_body), headers={"Content-Type": "application/json"}))


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["application/json", wire.MEDIA_TYPE, "text/plain", "", "\t;;"]))
def test_score_with_any_bytes(http, content, kind):
    check(http.post("/v1/score", content=content, headers={"Content-Type": kind}))


ints = st.one_of(st.integers(-2, 10), st.integers(-(2**31), 2**31 - 1))


def array(shape, elements=ints, dtype=np.int32):
    return shape.flatmap(
        lambda s: st.lists(elements, min_size=int(np.prod(s)), max_size=int(np.prod(s))).map(
            lambda values: np.array(values, dtype).reshape(s)
        )
    )


@FUZZ
@given(
    st.fixed_dictionaries(
        {
            "token_ids": array(st.tuples(st.integers(0, 8))),
            "sequence_lengths": array(st.tuples(st.integers(0, 3)), st.integers(-1, 8)),
            "turns": array(st.tuples(st.integers(0, 3), st.integers(2, 4)), st.integers(-1, 8)),
            "top_k": array(st.tuples(st.integers(0, 2))),
            "temperature": array(st.just((1,)), st.floats(), np.float64),
        },
        optional={"support_ids": array(st.tuples(st.integers(0, 4), st.integers(0, 3)))},
    )
)
def test_score_binary(http, tensors):
    check(http.post("/v1/score", content=save(tensors), headers={"Content-Type": wire.MEDIA_TYPE}))


@FUZZ
@given(st.data())
def test_score_with_a_good_binary_body_spoilt_in_one_byte(http, make_item, data):
    content = bytearray(wire.encode_request([make_item(6, (1, 3), (4, 6))]))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check(http.post("/v1/score", content=bytes(content), headers={"Content-Type": wire.MEDIA_TYPE}))


@FUZZ
@given(st.text(max_size=60))
def test_any_accept_header(http, accept):
    headers = {"Accept": accept.encode("utf-8", "surrogatepass").replace(b"\n", b"").replace(b"\r", b"")}
    check(http.post("/v1/score", json={"sequences": []}, headers=headers))
