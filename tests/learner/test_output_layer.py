"""Scores in chunks equal scores at once, in value and gradient.  Correctness items 6 and 29."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentrl.learner.output_layer import Scores, score

N, H, V, K = 13, 8, 50, 4


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden_N_H": torch.randn(N, H, generator=generator).to(dtype).requires_grad_(),
        "weight_V_H": torch.randn(V, H, generator=generator).to(dtype).requires_grad_(),
        "bias_V": torch.randn(V, generator=generator).to(dtype).requires_grad_(),
        "token_ids_N": torch.randint(V, (N,), generator=generator),
        "support_ids_N_k": torch.randint(V, (N, K), generator=generator),
        "temperature_N": torch.rand(N, generator=generator) + 0.5,
    }


def run(chunk_logits: int, loss_temperature: float = 2.0, **options: bool) -> tuple[Scores, list[Tensor]]:
    given = inputs()
    scores = score(**given, loss_temperature=loss_temperature, chunk_logits=chunk_logits, **options)
    weights = torch.linspace(0.5, 2, N)
    total = (weights * scores.token_N).sum() + (weights[:, None] * scores.support_N_k.exp()).sum()
    return scores, list(torch.autograd.grad(total, [given["hidden_N_H"], given["weight_V_H"], given["bias_V"]]))


def test_both_temperatures_divide_logits() -> None:
    given = inputs()
    scores, _ = run(10**9)
    logits = given["hidden_N_H"] @ given["weight_V_H"].T + given["bias_V"]
    token = torch.log_softmax(logits / given["temperature_N"][:, None], -1).gather(1, given["token_ids_N"][:, None])
    support = torch.log_softmax(logits / 2.0, -1).gather(1, given["support_ids_N_k"])
    torch.testing.assert_close(scores.token_N, token[:, 0])
    torch.testing.assert_close(scores.support_N_k, support)


@pytest.mark.parametrize("rows", [1, 4, 12])
def test_chunks_change_neither_scores_nor_gradients(rows: int) -> None:
    whole, whole_gradients = run(10**9)
    parts, part_gradients = run(rows * V)
    torch.testing.assert_close(parts.token_N, whole.token_N)
    torch.testing.assert_close(parts.support_N_k, whole.support_N_k)
    for part, expected in zip(part_gradients, whole_gradients, strict=True):
        torch.testing.assert_close(part, expected)


def test_entropy_is_that_of_the_sampling_distribution() -> None:
    given = inputs()
    scores = score(**given, loss_temperature=1.0, entropy=True, chunk_logits=4 * V)
    logits = (given["hidden_N_H"] @ given["weight_V_H"].T + given["bias_V"]) / given["temperature_N"][:, None]
    torch.testing.assert_close(scores.entropy_N, torch.distributions.Categorical(logits=logits).entropy())


def test_one_temperature_saves_a_softmax_and_changes_nothing() -> None:
    given = inputs() | {"temperature_N": torch.full((N,), 0.5)}
    twice = score(**given, loss_temperature=0.5)
    once = score(**given, loss_temperature=0.5, one_temperature=True)
    torch.testing.assert_close(once.token_N, twice.token_N)
    torch.testing.assert_close(once.support_N_k, twice.support_N_k)


def test_bfloat16_logits_are_cast_after_the_columns_are_gathered() -> None:
    given = inputs(torch.bfloat16)
    scores = score(**given, loss_temperature=1.0)
    assert scores.token_N.dtype == scores.support_N_k.dtype == torch.float32
    assert (scores.token_N <= 0).all()


def test_positions_are_scored_without_the_logits_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *a: seen.append(a[0].shape[0] * V) or real(*a))
    run(4 * V)
    assert max(seen) == 4 * V
