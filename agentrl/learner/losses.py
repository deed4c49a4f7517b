"""Loss terms as pure functions of tensors: one number per token, masked and averaged by the caller.

Letters: N scored tokens, k ids of the teacher's support, V vocabulary.  p is the student, q the teacher.  Every
log-probability that two models are compared by comes from logits divided by one temperature: the student's by
`output_layer`, the teacher's by the service, which is asked for its support at that same temperature.
Nothing here knows batches, ranks, weights of terms or schedules.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Direction = Literal["forward", "reverse", "jsd"]
Correction = Literal["decoupled", "bypass"]

#: The largest mass a support may claim, so that the logarithm of what is left stays finite.
MAX_SUPPORT_MASS = 1.0 - 1e-6

#: Bound of a log-ratio before exp: e**20 is past every clip and cap, and keeps inf out of inf * 0.
MAX_LOG_RATIO = 20.0


def tail_logprobs(support_logprobs_N_k: Tensor, valid_N_k: Tensor) -> Tensor:
    """log of the mass outside of the valid support, shape N: log1p(-sum), the sum clamped at 1 - 1e-6."""
    mass_N = torch.where(valid_N_k, support_logprobs_N_k, -torch.inf).exp().sum(-1)
    return torch.log1p(-mass_N.clamp(max=MAX_SUPPORT_MASS))


def support_kl(
    student_logprobs_N_k: Tensor,
    teacher_logprobs_N_k: Tensor,
    teacher_tail_N: Tensor,
    valid_N_k: Tensor,
    direction: Direction,
    beta: float = 0.5,
) -> Tensor:
    """Divergence per token on the teacher's support plus one bucket for the rest on both sides, in nats, shape N.

    The bucket makes this a divergence between two proper distributions of k + 1 outcomes; by the data-processing
    inequality it is never above the divergence on the full vocabulary, and it equals it when k = V.  It is not clamped
    at 0 (arXiv 2306.13649, section 3, for the three divergences; see `divergence`).
    Padded ids (valid False) and outcomes that the teacher gives no mass (a logprob of -inf, such as the tail of a full
    vocabulary) take no part.
    """
    student_tail_N = tail_logprobs(student_logprobs_N_k, valid_N_k)
    log_p = torch.cat([student_logprobs_N_k, student_tail_N[:, None]], dim=-1)
    log_q = torch.cat([teacher_logprobs_N_k, teacher_tail_N[:, None]], dim=-1)
    present = torch.cat([valid_N_k, torch.ones_like(valid_N_k[:, :1])], dim=-1) & torch.isfinite(log_q)
    return divergence(log_p, log_q, present, direction, beta)


def full_kl(
    student_logits_N_V: Tensor,
    teacher_logits_N_V: Tensor,
    direction: Direction,
    temperature: float = 1.0,
    beta: float = 0.5,
) -> Tensor:
    """The same divergence on the whole vocabulary, shape N: both logits are divided by the temperature first."""
    log_p = torch.log_softmax(student_logits_N_V / temperature, dim=-1)
    log_q = torch.log_softmax(teacher_logits_N_V / temperature, dim=-1)
    return divergence(log_p, log_q, torch.ones_like(log_p, dtype=torch.bool), direction, beta)


def divergence(log_p: Tensor, log_q: Tensor, present: Tensor, direction: Direction, beta: float = 0.5) -> Tensor:
    """Sum over the last axis of the divergence between student p and teacher q.

    forward: KL(q||p) = sum q (log q - log p).
    reverse: KL(p||q) = sum p (log p - log q).
    jsd:     beta KL(q||m) + (1-beta) KL(p||m) with m = beta q + (1-beta) p, 0 < beta < 1 (arXiv 2306.13649, eq. 1);
             divided by beta it tends to forward for beta -> 0, by 1-beta to reverse for beta -> 1.
    """
    # Absent outcomes are replaced before any arithmetic: a product with a zero mask would turn inf - inf into NaN.
    log_p = torch.where(present, log_p, 0.0)
    log_q = torch.where(present, log_q, 0.0)
    if direction == "forward":
        terms = log_q.exp() * (log_q - log_p)
    elif direction == "reverse":
        terms = log_p.exp() * (log_p - log_q)
    elif direction == "jsd":
        if not 0.0 < beta < 1.0:
            raise ValueError(f"jsd needs 0 < beta < 1, got {beta}; use forward or reverse for the ends")
        log_m = torch.logaddexp(log_q + math.log(beta), log_p + math.log1p(-beta))
        terms = beta * log_q.exp() * (log_q - log_m) + (1.0 - beta) * log_p.exp() * (log_p - log_m)
    else:
        raise ValueError(f"unknown KL direction {direction!r}; known: forward, reverse, jsd")
    return torch.where(present, terms, 0.0).sum(-1)


def k1(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """log p - log q of sampled tokens, detached: unbiased for KL(p||q) as a figure or a reward.

    As a loss its gradient is that of log p alone, without the teacher in it, so it is never given one.
    """
    return (log_p_N - log_q_N).detach()


def k2(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """(log p - log q)**2 / 2 of sampled tokens; as a loss its on-policy gradient is that of the reverse KL(p||q)."""
    return 0.5 * (log_p_N - log_q_N).square()


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """q/p - 1 - log(q/p) of sampled tokens: unbiased for KL(p||q), never negative.

    As a loss its on-policy gradient is that of the forward KL(q||p).
    """
    difference = (log_q_N - log_p_N).clamp(max=MAX_LOG_RATIO)
    return difference.exp() - 1.0 - difference


class PpoTerms(NamedTuple):
    """loss_N carries gradients; ratio_N and clipped_N (True where the clip decides) are for the log."""

    loss_N: Tensor
    ratio_N: Tensor
    clipped_N: Tensor


def ppo(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    behaviour_logprobs_N: Tensor,
    advantages_N: Tensor,
    clip: float,
    correction: Correction,
    importance_cap: float,
) -> PpoTerms:
    """The clipped surrogate (PPO, arXiv 1707.06347, eq. 7), negated, with a correction for stale or foreign samples.

    decoupled: r = pi/pi_old is clipped; min(pi_old/mu, cap), detached, weighs it (arXiv 2110.00641, eq. 4).
    bypass:    r = pi/mu is clipped, pi_old takes no part.
    mu is the engine that sampled; all logprobs are at the sampling temperature.
    """
    if correction == "decoupled":
        reference_N = old_logprobs_N
        log_weight_N = (old_logprobs_N - behaviour_logprobs_N).clamp(max=MAX_LOG_RATIO)
        weight_N = log_weight_N.exp().clamp(max=importance_cap).detach()
    elif correction == "bypass":
        reference_N = behaviour_logprobs_N
        weight_N = torch.ones_like(logprobs_N)
    else:
        raise ValueError(f"unknown PPO correction {correction!r}; known: decoupled, bypass")
    ratio_N = (logprobs_N - reference_N).clamp(max=MAX_LOG_RATIO).exp()
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - clip, 1.0 + clip) * advantages_N
    return PpoTerms(-weight_N * torch.minimum(plain_N, clipped_N), ratio_N.detach(), clipped_N < plain_N)


def value_error(values_S: Tensor, targets_S: Tensor) -> Tensor:
    """Squared distance of the student's values to their targets (the teacher's values, or the returns), shape S."""
    return (values_S - targets_S).square()


def masked_sum(terms: Tensor, weights: Tensor) -> Tensor:
    """sum of weights * terms over the positions whose weight is above 0; NaN and inf elsewhere do not reach it.

    The weights carry the global denominator, so that the sum over micro-batches and ranks is the mean.  What a masked
    term was computed *from* must still be finite where gradients flow: the chain rule multiplies it by this mask's 0.
    """
    if terms.shape != weights.shape:
        raise ValueError(f"terms {tuple(terms.shape)} and weights {tuple(weights.shape)} must have one shape")
    return (torch.where(weights > 0, terms, 0.0) * weights).sum()
