"""A truncated support keeps its tail (correctness 14), and holds what the caller named (16)."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.teacher.support import support_of

#: softmax of these is .4 .3 .15 .1 .05
LOGITS_1_5 = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()


def support(token: int, named: list[int] | None, top_k: int, temperature: float = 1.0):
    asked = None if named is None else torch.tensor([named])
    ids, logprobs, tail = support_of(LOGITS_1_5.clone() + 7.0, torch.tensor([token]), asked, top_k, temperature)
    return ids[0].tolist(), logprobs[0].exp().numpy(), math.exp(tail[0])


def test_the_support_is_the_top_k_then_the_token_itself_with_the_rest_in_the_tail():
    ids, probabilities, tail = support(token=4, named=None, top_k=2)
    assert ids == [0, 1, 4]
    np.testing.assert_allclose(probabilities, [0.4, 0.3, 0.05], rtol=1e-6)
    np.testing.assert_allclose(tail, 0.25, rtol=1e-6)


def test_an_id_that_is_in_the_top_k_already_appears_once():
    ids, _, tail = support(token=1, named=[0, 3, 3, -1], top_k=2)
    assert ids == [0, 1, 3]
    np.testing.assert_allclose(tail, 0.2, rtol=1e-6)


def test_with_top_k_0_only_the_token_and_the_named_ids_are_answered():
    ids, probabilities, tail = support(token=3, named=[4], top_k=0)
    assert ids == [3, 4]
    np.testing.assert_allclose(probabilities, [0.1, 0.05], rtol=1e-6)
    np.testing.assert_allclose(tail, 0.85, rtol=1e-6)


def test_the_whole_vocabulary_leaves_no_tail():
    ids, probabilities, tail = support(token=2, named=None, top_k=5)
    assert ids == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(probabilities, [0.4, 0.3, 0.15, 0.1, 0.05], rtol=1e-6)
    assert tail == 0.0


def test_the_temperature_divides_the_logits():
    _, probabilities, _ = support(token=0, named=None, top_k=5, temperature=0.5)
    squared = np.array([0.4, 0.3, 0.15, 0.1, 0.05]) ** 2
    np.testing.assert_allclose(probabilities, squared / squared.sum(), rtol=1e-5)


def test_rows_with_shorter_supports_are_padded_at_their_end():
    logits_2_5 = LOGITS_1_5.repeat(2, 1)
    ids, logprobs, _ = support_of(logits_2_5, torch.tensor([0, 4]), None, top_k=2, temperature=1.0)
    assert ids.tolist() == [[0, 1, -1], [0, 1, 4]]
    assert logprobs[0, 2] == -math.inf


def test_a_tail_of_1e_minus_12_keeps_its_precision():
    logits = torch.tensor([[0.0, -30.0, -31.0]])
    _, _, tail = support_of(logits, torch.tensor([0]), None, top_k=1, temperature=1.0)
    np.testing.assert_allclose(tail[0], np.logaddexp(-30.0, -31.0), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    top_k=st.integers(0, 40),
    named=st.integers(0, 6),
    temperature=st.floats(0.05, 20.0),
)
def test_support_and_tail_sum_to_one(seed: int, top_k: int, named: int, temperature: float):
    generator = torch.Generator().manual_seed(seed)
    logits_n_V = torch.randn(3, 40, generator=generator) * 5
    tokens_n = torch.randint(40, (3,), generator=generator)
    named_n_m = torch.randint(-1, 40, (3, named), generator=generator) if named else None
    exact_n_V = (logits_n_V / temperature).log_softmax(-1)
    ids, logprobs, tail = support_of(logits_n_V, tokens_n, named_n_m, top_k, temperature)
    total = torch.cat([logprobs, tail[:, None]], dim=-1).logsumexp(-1)
    np.testing.assert_allclose(total, 0.0, atol=2e-5)
    for row in range(3):
        known = [i for i in ids[row].tolist() if i >= 0]
        assert len(known) == len(set(known))
        assert int(tokens_n[row]) in known
        if named_n_m is not None:
            assert {i for i in named_n_m[row].tolist() if i >= 0} <= set(known)
        np.testing.assert_allclose(logprobs[row, : len(known)], exact_n_V[row, known], rtol=1e-4, atol=1e-4)
