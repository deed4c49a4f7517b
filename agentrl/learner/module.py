"""The student as one module whose forward is the loss, so that ZeRO-3 sees every use of a weight.

`StudentModule` holds a Hugging Face causal model (LoRA already injected, if any).  The value head stays outside of the
module tree: hidden size + 1 numbers in fp32 with an optimizer of their own, which no ZeRO stage divides, no bf16 cast
touches and no export contains.  Only `rank` makes and calls these.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.config import Loss, WeightTriple
from agentrl.learner import losses
from agentrl.learner.batch import MicroBatch
from agentrl.learner.output_layer import Scores, score

Figures = dict[str, Tensor]


class ValueHead(nn.Module):
    """V(s) from the hidden state of a state's last token: linear, fp32, 0 at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values of hidden states of any leading shape, fp32."""
        return F.linear(hidden.float(), self.weight, self.bias).squeeze(-1)


@dataclass(frozen=True)
class TensorBatch:
    """A `MicroBatch` as tensors on the rank's device, by the same names."""

    tensors: dict[str, Tensor]
    one_temperature: bool

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device, loss_temperature: float) -> TensorBatch:
        # Ray hands out read-only arrays; torch.tensor copies.
        tensors = {f.name: torch.tensor(getattr(batch, f.name)).to(device, non_blocking=True) for f in fields(batch)}
        return cls(tensors, bool((batch.temperature_N == loss_temperature).all()))

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["tensors"][name]
        except KeyError as error:
            raise AttributeError(name) from error


class _Head(nn.Module):
    """Uses the output layer and the value head without owning them.

    Under ZeRO-3 `rank` registers the output layer's weight as external to every head, so that it is gathered for the
    head's own forward and backward pass.
    """

    output_layer: nn.Linear
    value_head: ValueHead

    def __init__(self, output_layer: nn.Linear, value_head: ValueHead, vocabulary: int) -> None:
        super().__init__()
        self.__dict__["output_layer"] = output_layer
        self.__dict__["value_head"] = value_head
        self.vocabulary = vocabulary

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """weight_V_H and bias_V of the output layer, without the rows that no id has."""
        bias = self.output_layer.bias
        return self.output_layer.weight[: self.vocabulary], None if bias is None else bias[: self.vocabulary]


class ScoreHead(_Head):
    """What the student says before an update; see `targets.RowScores`."""

    def forward(self, hidden_B_T_H: Tensor, batch: TensorBatch) -> tuple[Tensor, Tensor | None, Tensor]:
        """(logprobs_N, entropy_N, values_B_T), the first two at each token's sampling temperature."""
        scores = score(
            hidden_B_T_H[batch.row_N, batch.predictor_N],
            *self.rows(),
            batch.token_ids_N,
            batch.token_ids_N[:, None],
            batch.temperature_N,
            loss_temperature=1.0,
            one_temperature=bool((batch.temperature_N == 1.0).all()),
            entropy=True,
        )
        return scores.token_N, scores.entropy_N, self.value_head(hidden_B_T_H)


class LossHead(_Head):
    """Everything after the last hidden state, up to the one number that is minimised."""

    def __init__(self, output_layer: nn.Linear, value_head: ValueHead, vocabulary: int, loss: Loss) -> None:
        super().__init__(output_layer, value_head, vocabulary)
        self.loss = loss

    def forward(
        self, hidden_B_T_H: Tensor, batch: TensorBatch, weights: WeightTriple, measure_terms: bool
    ) -> tuple[Tensor, Figures]:
        """The weighted loss of one micro-batch, and detached sums to log.

        The sum of this over all micro-batches of all ranks is the loss: every weight in the batch carries its global
        denominator.  `measure_terms` adds `square_norm/<term>`: the squared norm of the gradient of the weighted term
        with respect to `hidden_B_T_H`.  Tokens of different micro-batches are disjoint, so these squares add up.
        """
        scores = score(
            hidden_B_T_H[batch.row_N, batch.predictor_N],
            *self.rows(),
            batch.token_ids_N,
            batch.support_ids_N_k,
            batch.temperature_N,
            self.loss.kl.temperature,
            one_temperature=batch.one_temperature,
        )
        kl, kl_figures = self._kl(scores, batch)
        value, value_figures = self._value(hidden_B_T_H, batch)
        ppo, ppo_figures = self._ppo(scores, batch)
        terms = {"kl": weights.kl * kl, "value": weights.value * value, "ppo": weights.ppo * ppo}
        total = terms["kl"] + terms["value"] + terms["ppo"]
        figures = {"loss/total": total} | kl_figures | value_figures | ppo_figures
        if measure_terms:
            for name, term in terms.items():
                # The graph of a term ends at this module's input, so ZeRO's hooks on weights and modules stay asleep.
                (gradient,) = torch.autograd.grad(term, hidden_B_T_H, retain_graph=True)
                figures[f"square_norm/{name}"] = gradient.float().square().sum()
        return total, {name: figure.detach() for name, figure in figures.items()}

    def _kl(self, scores: Scores, batch: TensorBatch) -> tuple[Tensor, Figures]:
        config = self.loss.kl
        valid_N_k = batch.support_ids_N_k >= 0
        kl_N = losses.support_kl(
            scores.support_N_k,
            batch.support_logprobs_N_k,
            batch.support_tail_N,
            valid_N_k,
            config.direction,
            config.beta,
        )
        scale = config.temperature**2 if config.scale_by_temperature_squared else 1.0
        kl = scale * losses.masked_sum(kl_N, batch.kl_weights_N)
        figures = {"loss/kl": kl}
        with torch.no_grad():
            sides = {"student": scores.support_N_k, "teacher": batch.support_logprobs_N_k}
            for side, logprobs_N_k in sides.items():
                mass_N = torch.where(valid_N_k, logprobs_N_k, -torch.inf).exp().sum(-1)
                figures[f"kl/{side}_mass"] = losses.masked_sum(mass_N, batch.kl_weights_N)
        return kl, figures

    def _value(self, hidden_B_T_H: Tensor, batch: TensorBatch) -> tuple[Tensor, Figures]:
        config = self.loss.value
        values_S = self.value_head(hidden_B_T_H[batch.row_S, batch.state_S])
        values_G = self.value_head(hidden_B_T_H[batch.row_G, batch.state_G])
        to_return = losses.masked_sum(losses.value_error(values_S, batch.returns_S), batch.return_weights_S)
        to_teacher = losses.masked_sum(losses.value_error(values_G, batch.teacher_values_G), batch.teacher_weights_G)
        value = config.return_weight * to_return + config.teacher_weight * to_teacher
        return value, {"loss/value": value, "value/to_return": to_return, "value/to_teacher": to_teacher}

    def _ppo(self, scores: Scores, batch: TensorBatch) -> tuple[Tensor, Figures]:
        config = self.loss.ppo
        terms = losses.ppo(
            scores.token_N,
            batch.old_logprobs_N,
            batch.behaviour_N,
            batch.advantages_N,
            config.clip,
            config.correction,
            config.importance_cap,
        )
        ppo = losses.masked_sum(terms.loss_N, batch.ppo_weights_N)
        with torch.no_grad():
            to_old_N = losses.k3(batch.old_logprobs_N, scores.token_N)
            figures = {
                "loss/ppo": ppo,
                "ppo/ratio": losses.masked_sum(terms.ratio_N, batch.ppo_weights_N),
                "ppo/clip_share": losses.masked_sum(terms.clipped_N.float(), batch.ppo_weights_N),
                "ppo/kl_to_old": losses.masked_sum(to_old_N, batch.ppo_weights_N),
            }
        return ppo, figures


class StudentModule(nn.Module):
    """forward(batch, weights, measure_terms) is `LossHead.forward`; forward(batch) alone is `ScoreHead.forward`.

    vocabulary: ids of the tokenizer.
    """

    def __init__(self, model: Any, value_head: ValueHead, vocabulary: int, loss: Loss) -> None:
        super().__init__()
        self.model = model
        output_layer = plain_output_layer(model)
        self.loss_head = LossHead(output_layer, value_head, vocabulary, loss)
        self.score_head = ScoreHead(output_layer, value_head, vocabulary)

    def forward(self, batch: TensorBatch, weights: WeightTriple | None = None, measure_terms: bool = False) -> Any:
        backbone = getattr(self.model, self.model.base_model_prefix)
        hidden_B_T_H = backbone(input_ids=batch.token_ids_B_T, use_cache=False).last_hidden_state
        if weights is None:
            return self.score_head(hidden_B_T_H, batch)
        return self.loss_head(hidden_B_T_H, batch, weights, measure_terms)


def plain_output_layer(model: Any) -> nn.Linear:
    """The output layer of a model whose logits are hidden states times its weight.  ValueError for any other model."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ValueError(
            f"the output layer of {type(model).__name__} is a {type(head).__name__}, not a plain linear layer: "
            "leave it out of student.lora.target_modules"
        )
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, key, None) not in (None, 1, 1.0):
            raise ValueError(f"{type(model).__name__} transforms its logits ({key}): the learner does not support it")
    return head
