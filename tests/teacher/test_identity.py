"""The handshake lists every difference that would spoil the guidance, and nothing else (correctness 10, 26)."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from agentrl.teacher.client import HandshakeError, identity_of
from agentrl.teacher.identity import ValueCalibration, differences


@pytest.fixture
def tokenizer(tiny_model_dir):
    return AutoTokenizer.from_pretrained(tiny_model_dir)


def test_a_student_with_other_padding_rows_passes(teacher, tokenizer):
    identity = teacher.handshake(identity_of(tokenizer, context_length=512, gamma=0.9))
    assert identity.padded_vocabulary == 448
    assert identity.vocabulary == len(tokenizer)


def test_every_difference_is_listed_at_once(teacher, tokenizer):
    tokenizer.add_tokens(["one-more"])
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(HandshakeError) as caught:
        teacher.handshake(identity_of(tokenizer, context_length=4096, gamma=1.0))
    assert [d.partition(":")[0] for d in caught.value.differences] == [
        "token→id map",
        "special id pad",
        "chat template",
        "context length",
        "discount of values",
    ]
    assert "the teacher reads 1024 tokens, the student asks for up to 4096" in str(caught.value)


def test_two_tokens_that_swap_their_ids_are_another_token_map(scorer, tokenizer, monkeypatch):
    vocabulary = tokenizer.get_vocab()
    first, second = sorted(vocabulary, key=vocabulary.get)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: vocabulary)
    [difference] = differences(scorer.identity, identity_of(tokenizer, 16))
    assert difference.startswith("token→id map")


def test_another_bos_rule_is_a_difference(scorer, tokenizer):
    student = identity_of(tokenizer, 16).model_copy(update={"adds_bos": True})
    assert differences(scorer.identity, student) == ["bos rule: the teacher adds it: False, the student: True"]


@pytest.mark.parametrize(
    ("calibration", "gamma", "expected"),
    [
        (ValueCalibration(gamma=0.9, scale=1.0, calibrated=True), 0.9, []),
        (ValueCalibration(gamma=0.9, scale=2.0, calibrated=True), 0.9, ["scale of values"]),
        (ValueCalibration(gamma=None, calibrated=True), 0.9, ["discount of values"]),
        (ValueCalibration(gamma=0.5, scale=3.0, calibrated=False), 0.9, []),
        (ValueCalibration(gamma=0.5, calibrated=True), None, []),
        (None, 0.9, []),
    ],
    ids=["same", "scale", "unknown-gamma", "uncalibrated-is-masked-anyway", "student-ignores-values", "no-head"],
)
def test_discount_and_scale_must_match_where_values_are_used(scorer, tokenizer, calibration, gamma, expected):
    teacher = scorer.identity.model_copy(update={"value": calibration})
    found = differences(teacher, identity_of(tokenizer, 16, gamma=gamma))
    assert [d.partition(":")[0] for d in found] == expected
