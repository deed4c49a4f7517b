"""From logits to a truncated support with its exact tail.  Pure torch, no model.

The tail is the log-sum-exp of what is left, not log(1 - sum): it keeps its precision however small it is, and together
with the support it is the whole distribution (correctness 14).
"""

from __future__ import annotations

import torch


def support_of(
    logits_n_V: torch.Tensor,
    tokens_n: torch.Tensor,
    named_ids_n_m: torch.Tensor | None,
    top_k: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Top k, then the token itself, then the named ids (-1 pads); each id once.

    Returns support_ids_n_k (int64, -1 pads at the end), support_logprobs_n_k (float32, -inf pads) and tail_logprobs_n.
    The k returned is the widest row's.  `logits_n_V` is overwritten when it is float32 already.
    """
    logits_n_V = logits_n_V.float().div_(temperature)
    log_z_n_1 = logits_n_V.logsumexp(-1, keepdim=True)
    ids_n_k = logits_n_V.topk(min(top_k, logits_n_V.shape[-1]), dim=-1).indices
    ids_n_k = _append_new(ids_n_k, tokens_n[:, None])
    if named_ids_n_m is not None:
        for column_n_1 in named_ids_n_m.split(1, dim=1):
            ids_n_k = _append_new(ids_n_k, column_n_1)
    padded_n_k = ids_n_k < 0
    # Stable: the order of the support survives, pads move to the end, and columns that are pads everywhere go.
    order_n_k = padded_n_k.to(torch.uint8).argsort(dim=-1, stable=True)
    ids_n_k = ids_n_k.gather(-1, order_n_k)[:, : int((~padded_n_k).sum(-1).max())]
    padded_n_k = ids_n_k < 0
    index_n_k = torch.where(padded_n_k, tokens_n[:, None], ids_n_k)
    logprobs_n_k = logits_n_V.gather(-1, index_n_k) - log_z_n_1
    logprobs_n_k.masked_fill_(padded_n_k, -torch.inf)
    tail_n = logits_n_V.scatter_(-1, index_n_k, -torch.inf).logsumexp(-1) - log_z_n_1[:, 0]
    return ids_n_k, logprobs_n_k, tail_n


def _append_new(ids_n_k: torch.Tensor, column_n_1: torch.Tensor) -> torch.Tensor:
    """`column_n_1` beside `ids_n_k`, as -1 where the row has that id already."""
    known_n_1 = (ids_n_k == column_n_1).any(-1, keepdim=True)
    return torch.cat([ids_n_k, column_n_1.masked_fill(known_n_1, -1)], dim=-1)
