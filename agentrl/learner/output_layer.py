"""From hidden states to the log-probabilities that the losses need, without the logits of a whole batch in memory.

N positions of hidden size H over a vocabulary of V make N x V logits: at 8k tokens and 150k words that is 4.6 GiB in
fp32 before the softmax and its gradient.  Here the positions go through the output layer in chunks, the few needed
columns are gathered before any cast to fp32, and every chunk is computed again in the backward pass instead of kept.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Logits of one chunk: 256 MiB of fp32.  A batch that fits in one chunk is not computed twice.
CHUNK_LOGITS = 2**26


class Scores(NamedTuple):
    """Log-probabilities in nats, fp32.

    token_N: of each token at its sampling temperature.
    support_N_k: of the support ids at the loss temperature; meaningless where an id is -1.
    entropy_N: entropy in nats at the sampling temperature, without gradient; None unless asked for.
    """

    token_N: Tensor
    support_N_k: Tensor
    entropy_N: Tensor | None


def score(
    hidden_N_H: Tensor,
    weight_V_H: Tensor,
    bias_V: Tensor | None,
    token_ids_N: Tensor,
    support_ids_N_k: Tensor,
    temperature_N: Tensor,
    loss_temperature: float,
    one_temperature: bool = False,
    entropy: bool = False,
    chunk_logits: int = CHUNK_LOGITS,
) -> Scores:
    """Score N tokens; hidden_N_H are the states that predict them (row i-1 for token i).  Results are fp32.

    Both temperatures divide logits, before the softmax.  `one_temperature` promises that every sampling temperature
    equals the loss temperature, and saves the second softmax.  support ids of -1 are padding.
    """
    rows = max(1, chunk_logits // weight_V_H.shape[0])
    count = hidden_N_H.shape[0]
    score_chunk = partial(
        _score_chunk,
        weight_V_H=weight_V_H,
        bias_V=bias_V,
        loss_temperature=loss_temperature,
        one_temperature=one_temperature,
        entropy=entropy,
    )
    if count <= rows:
        return Scores(*score_chunk(hidden_N_H, token_ids_N, support_ids_N_k, temperature_N))
    chunks = []
    for start in range(0, count, rows):
        here = slice(start, start + rows)
        piece = (hidden_N_H[here], token_ids_N[here], support_ids_N_k[here], temperature_N[here])
        if torch.is_grad_enabled():
            chunks.append(checkpoint(score_chunk, *piece, use_reentrant=False, preserve_rng_state=False))
        else:
            chunks.append(score_chunk(*piece))
    token, support, entropies = zip(*chunks, strict=True)
    return Scores(torch.cat(token), torch.cat(support), torch.cat(entropies) if entropy else None)


def _score_chunk(
    hidden_N_H: Tensor,
    token_ids_N: Tensor,
    support_ids_N_k: Tensor,
    temperature_N: Tensor,
    weight_V_H: Tensor,
    bias_V: Tensor | None,
    loss_temperature: float,
    one_temperature: bool,
    entropy: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    logits_N_V = F.linear(hidden_N_H, weight_V_H, bias_V)
    token_N = logits_N_V.gather(1, token_ids_N[:, None])[:, 0].float() / temperature_N
    support_N_k = logits_N_V.gather(1, support_ids_N_k.clamp(min=0)).float() / loss_temperature
    loss_norm_N = _log_normaliser(logits_N_V, loss_temperature)
    norm_N = loss_norm_N if one_temperature else _log_normaliser(logits_N_V, temperature_N[:, None])
    entropy_N = None
    if entropy:
        with torch.no_grad():
            logprobs_N_V = logits_N_V.float().div(temperature_N[:, None]).sub_(norm_N[:, None])
            entropy_N = -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)
    return token_N - norm_N, support_N_k - loss_norm_N[:, None], entropy_N


def _log_normaliser(logits_N_V: Tensor, temperature: float | Tensor) -> Tensor:
    scaled_N_V = logits_N_V.float()
    if isinstance(temperature, Tensor) or temperature != 1.0:
        scaled_N_V = scaled_N_V / temperature
    return torch.logsumexp(scaled_N_V, dim=-1)
