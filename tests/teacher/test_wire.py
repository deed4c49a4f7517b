"""The binary form of a request and its answer: a round trip, and nothing but what it should be is read."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save

from agentrl.teacher import wire
from agentrl.teacher.scorer import ItemScores, ScoreItem


def items() -> list[ScoreItem]:
    named = np.array([[1, -1], [2, 3]], np.int32)
    return [
        ScoreItem(np.arange(6, dtype=np.int32), np.array([[1, 3], [4, 6]], np.int32), None, 3, 0.7),
        ScoreItem(np.arange(4, dtype=np.int32), np.array([[2, 4]], np.int32), named, 3, 0.7),
    ]


def test_a_request_survives_the_wire():
    request = wire.decode_request(wire.encode_request(items()))
    assert [ids.tolist() for ids in request.token_ids] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert [turns.tolist() for turns in request.turns] == [[[1, 3], [4, 6]], [[2, 4]]]
    assert request.named_ids_P_m is not None
    assert request.named_ids_P_m.tolist() == [[-1, -1]] * 4 + [[1, -1], [2, 3]]
    assert (request.top_k, request.temperature) == (3, 0.7)


def test_an_answer_survives_the_wire_padded_to_its_widest_support():
    scores = [
        ItemScores(np.ones((4, 3), np.int32), np.ones((4, 3), np.float32), np.zeros(4, np.float32), None),
        ItemScores(
            np.ones((2, 5), np.int32), np.ones((2, 5), np.float32), np.zeros(2, np.float32), np.ones(1, np.float32)
        ),
    ]
    first, second = wire.decode_answer(wire.encode_answer(scores, [2, 1]), items())
    assert first.support_ids_n_k[0].tolist() == [1, 1, 1, -1, -1]
    assert first.support_logprobs_n_k[0].tolist() == [1, 1, 1, -np.inf, -np.inf]
    assert first.values_K is None
    assert second.values_K.tolist() == [1.0]


def test_items_that_want_another_temperature_do_not_share_a_request():
    one, other = items()
    with pytest.raises(ValueError, match="must share top_k and temperature"):
        wire.encode_request([one, ScoreItem(other.token_ids_T, other.turns_K_2, None, 3, 1.0)])


GOOD = load(wire.encode_request(items()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": None}, "tensors missing: \\['token_ids'\\]"),
        ({"extra": np.zeros(1, np.int32)}, "unknown: \\['extra'\\]"),
        ({"token_ids": np.zeros(10, np.float32)}, "token_ids must be I32 with 1 dimensions, it is F32"),
        ({"token_ids": np.zeros((10, 1), np.int32)}, "token_ids must be I32 with 1 dimensions"),
        ({"sequence_lengths": np.array([6, 5], np.int32)}, "sum to the 10 token_ids, they sum to 11"),
        ({"sequence_lengths": np.array([11, -1], np.int32)}, "must be positive"),
        ({"sequence_lengths": np.zeros(0, np.int32)}, "must be positive"),
        ({"turns": np.zeros((3, 2), np.int32)}, "turns must have 3 columns"),
        ({"turns": np.array([[1, 1, 2], [0, 1, 2]], np.int32)}, "must ascend within 0..1"),
        ({"turns": np.array([[0, 1, 2], [2, 1, 2]], np.int32)}, "must ascend within 0..1"),
        ({"turns": np.array([[-1, 1, 2]], np.int32)}, "must ascend within 0..1"),
        ({"top_k": np.zeros(2, np.int32)}, "top_k must have one element, it has 2"),
        ({"temperature": np.zeros(0, np.float64)}, "temperature must have one element, it has 0"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message):
    tensors = {name: tensor for name, tensor in (GOOD | change).items() if tensor is not None}
    with pytest.raises(wire.WireError, match=message):
        wire.decode_request(save(tensors))


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff" * 100, wire.encode_request(items())[:-1], b"\x80\x04K\x01."])
def test_bytes_that_are_no_safetensors_file_are_refused(body):
    with pytest.raises(wire.WireError, match="not a safetensors file"):
        wire.decode_request(body)


def test_an_answer_to_another_question_is_refused():
    scores = [ItemScores(np.ones((3, 1), np.int32), np.ones((3, 1), np.float32), np.zeros(3, np.float32), None)]
    with pytest.raises(wire.WireError, match="for 6 positions in 3 turns"):
        wire.decode_answer(wire.encode_answer(scores, [1]), items())
