"""Losses: direction, temperature, tail, estimators, clipping.  Correctness items 4, 12 to 15 and 24."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.learner import losses

STUDENT = torch.tensor([[0.7, 0.2, 0.1]]).log()
TEACHER = torch.tensor([[0.1, 0.3, 0.6]]).log()


def on_support(student_N_V: Tensor, teacher_N_V: Tensor, k: int, direction: str, beta: float = 0.5) -> Tensor:
    """The truncated divergence on the teacher's top k."""
    ids_N_k = teacher_N_V.topk(k, dim=-1).indices
    teacher_N_k = teacher_N_V.gather(1, ids_N_k)
    tail_N = (
        torch.log1p(-teacher_N_k.exp().sum(-1).clamp(max=1.0))
        if k < teacher_N_V.shape[1]
        else teacher_N_V.new_full((len(teacher_N_V),), -math.inf)
    )
    valid_N_k = torch.ones_like(ids_N_k, dtype=torch.bool)
    return losses.support_kl(student_N_V.gather(1, ids_N_k), teacher_N_k, tail_N, valid_N_k, direction, beta)


def random_pair(seed: int, n: int = 6, v: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, n, v, generator=generator, dtype=torch.float64) * 3
    student, teacher = torch.log_softmax(logits, dim=-1)
    return student, teacher


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("forward", 0.1 * math.log(0.1 / 0.7) + 0.3 * math.log(0.3 / 0.2) + 0.6 * math.log(0.6 / 0.1)),
        ("reverse", 0.7 * math.log(0.7 / 0.1) + 0.2 * math.log(0.2 / 0.3) + 0.1 * math.log(0.1 / 0.6)),
    ],
)
def test_the_direction_is_in_the_name(direction: str, expected: float) -> None:
    assert losses.full_kl(STUDENT, TEACHER, direction).item() == pytest.approx(expected, abs=1e-6)


def test_forward_is_what_torch_calls_kl_div_of_student_and_teacher() -> None:
    ours = losses.full_kl(STUDENT, TEACHER, "forward")
    theirs = F.kl_div(STUDENT, TEACHER, log_target=True, reduction="sum")
    torch.testing.assert_close(ours[0], theirs)


def test_jsd_is_the_weighted_sum_of_distances_to_the_mixture() -> None:
    q, p = TEACHER.exp(), STUDENT.exp()
    m = 0.3 * q + 0.7 * p
    expected = 0.3 * (q * (q / m).log()).sum() + 0.7 * (p * (p / m).log()).sum()
    assert losses.full_kl(STUDENT, TEACHER, "jsd", beta=0.3).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize(("beta", "scale", "limit"), [(1e-7, 1e-7, "forward"), (1 - 1e-7, 1e-7, "reverse")])
def test_jsd_tends_to_forward_and_reverse_at_its_ends(beta: float, scale: float, limit: str) -> None:
    student, teacher = random_pair(0)
    jsd = losses.full_kl(student, teacher, "jsd", beta=beta) / scale
    torch.testing.assert_close(jsd, losses.full_kl(student, teacher, limit), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_jsd_refuses_its_ends_where_it_would_vanish(beta: float) -> None:
    with pytest.raises(ValueError, match="0 < beta < 1"):
        losses.full_kl(STUDENT, TEACHER, "jsd", beta=beta)


def test_temperature_divides_both_logits_before_the_softmax() -> None:
    student, teacher = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.5, 1.0, 0.0]])
    p, q = torch.softmax(student / 2, -1), torch.softmax(teacher / 2, -1)
    expected = (q * (q / p).log()).sum().item()
    assert losses.full_kl(student, teacher, "forward", temperature=2.0).item() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 39), direction=st.sampled_from(["forward", "reverse", "jsd"]))
def test_the_truncated_divergence_is_never_negative_and_never_above_the_exact_one(
    seed: int, k: int, direction: str
) -> None:
    student, teacher = random_pair(seed)
    truncated = on_support(student, teacher, k, direction)
    assert (truncated <= losses.full_kl(student, teacher, direction) + 1e-4).all()
    assert (truncated >= -1e-4).all()


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_a_full_support_gives_the_exact_divergence(direction: str) -> None:
    student, teacher = random_pair(3)
    torch.testing.assert_close(on_support(student, teacher, 40, direction), losses.full_kl(student, teacher, direction))


def test_without_the_tail_the_forward_sum_would_be_negative_here() -> None:
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.3, 0.7]]).log()
    naive = (teacher[:, :1].exp() * (teacher - student)[:, :1]).sum()
    assert naive < 0
    valid = torch.ones(1, 1, dtype=torch.bool)
    ours = losses.support_kl(student[:, :1], teacher[:, :1], teacher[:, 1], valid, "forward")
    torch.testing.assert_close(ours, losses.full_kl(student, teacher, "forward"))


def test_padded_ids_take_no_part() -> None:
    student, teacher = random_pair(5)
    plain = on_support(student, teacher, 4, "forward")
    ids = teacher.topk(4, dim=-1).indices
    picked = teacher.gather(1, ids)
    tail = torch.log1p(-picked.exp().sum(-1))
    valid = torch.tensor([[True] * 4 + [False] * 2]).expand(len(ids), -1)
    wide = losses.support_kl(
        F.pad(student.gather(1, ids), (0, 2), value=-0.1),
        F.pad(picked, (0, 2), value=-math.inf),
        tail,
        valid,
        "forward",
    )
    torch.testing.assert_close(plain, wide)


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_gradients_are_finite_when_the_support_holds_all_the_students_mass(direction: str) -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0, 0.0]], requires_grad=True)
    student = torch.log_softmax(logits, -1)[:, :2]
    valid = torch.ones(1, 2, dtype=torch.bool)
    teacher = torch.tensor([[0.5, 0.3]]).log()
    losses.support_kl(student, teacher, torch.tensor([0.2]).log(), valid, direction).sum().backward()
    assert torch.isfinite(logits.grad).all()


def expected_gradient(estimator: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of E_p[estimator] with the samples' distribution held fixed, beside the exact ones."""
    logits = torch.tensor([0.3, -0.2, 1.0, 0.1, -1.0], dtype=torch.float64, requires_grad=True)
    log_q = torch.log_softmax(torch.tensor([1.0, 0.5, -0.5, 0.0, 0.2], dtype=torch.float64), -1)
    log_p = torch.log_softmax(logits, -1)
    sampled = (log_p.detach().exp() * getattr(losses, estimator)(log_p, log_q)).sum()
    gradient = (
        torch.autograd.grad(sampled, logits, retain_graph=True, allow_unused=True)[0] if sampled.requires_grad else None
    )
    reverse = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), logits, retain_graph=True)[0]
    forward = torch.autograd.grad((log_q.exp() * (log_q - log_p)).sum(), logits)[0]
    return gradient, reverse, forward


def test_k2_as_a_loss_has_the_reverse_gradient() -> None:
    gradient, reverse, _ = expected_gradient("k2")
    torch.testing.assert_close(gradient, reverse)


def test_k3_as_a_loss_has_the_forward_gradient() -> None:
    gradient, _, forward = expected_gradient("k3")
    torch.testing.assert_close(gradient, forward)


def test_k1_gives_no_gradient() -> None:
    assert expected_gradient("k1")[0] is None


def test_k1_and_k3_are_unbiased_for_the_reverse_divergence() -> None:
    student, teacher = random_pair(8)
    exact = losses.full_kl(student, teacher, "reverse")
    torch.testing.assert_close((student.exp() * losses.k1(student, teacher)).sum(-1), exact)
    torch.testing.assert_close((student.exp() * losses.k3(student, teacher)).sum(-1), exact)


def test_masked_positions_are_chosen_and_not_multiplied() -> None:
    terms = torch.tensor([1.0, math.nan, math.inf], requires_grad=True)
    total = losses.masked_sum(terms, torch.tensor([0.5, 0.0, 0.0]))
    total.backward()
    assert total.item() == 0.5
    assert terms.grad.tolist() == [0.5, 0.0, 0.0]


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        losses.masked_sum(torch.zeros(3), torch.zeros(1))


def ppo(logprob: float, old: float, mu: float, advantage: float, correction: str = "decoupled") -> losses.PpoTerms:
    tensors = [torch.tensor([x]) for x in (logprob, old, mu, advantage)]
    return losses.ppo(*tensors, clip=0.2, correction=correction, importance_cap=2.0)


def test_decoupled_clips_the_ratio_to_the_old_policy_and_caps_the_weight_to_the_sampler() -> None:
    terms = ppo(math.log(0.6), math.log(0.4), math.log(0.1), 1.0)
    assert terms.ratio_N.item() == pytest.approx(1.5)
    assert terms.loss_N.item() == pytest.approx(-2.0 * 1.2)  # pi_old / mu = 4, capped at 2
    assert terms.clipped_N.item()


def test_bypass_clips_the_ratio_to_the_sampler() -> None:
    terms = ppo(math.log(0.6), math.log(0.4), math.log(0.3), 1.0, "bypass")
    assert terms.ratio_N.item() == pytest.approx(2.0)
    assert terms.loss_N.item() == pytest.approx(-1.2)


def test_a_negative_advantage_is_not_clipped_from_below_the_pessimistic_side() -> None:
    terms = ppo(math.log(0.6), math.log(0.3), math.log(0.3), -1.0)
    assert terms.loss_N.item() == pytest.approx(2.0)
    assert not terms.clipped_N.item()


def test_the_weight_to_the_sampler_carries_no_gradient() -> None:
    logprob, old = torch.tensor([-1.0], requires_grad=True), torch.tensor([-1.0], requires_grad=True)
    terms = losses.ppo(logprob, old, torch.tensor([-1.5]), torch.tensor([1.0]), 0.2, "decoupled", 2.0)
    of_logprob, of_old = torch.autograd.grad(terms.loss_N.sum(), [logprob, old])
    assert of_logprob.item() == pytest.approx(-math.exp(0.5))
    assert of_old.item() == pytest.approx(math.exp(0.5))  # through the ratio alone


def test_a_token_that_became_certain_gives_no_infinity() -> None:
    assert math.isfinite(ppo(0.0, -200.0, -200.0, -1.0).loss_N.item())
