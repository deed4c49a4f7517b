"""The student as one module whose forward is the loss, so that ZeRO-3 sees every use of a weight.

`StudentModule` holds a Hugging Face causal model (LoRA already injected, if any).  The value head stays outside of the
module tree: a vector of hidden size + 1 in fp32, with an optimizer of its own, which no ZeRO stage divides, no bf16 cast
touches and no export contains.  Only `rank` makes and calls these.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config import Loss, WeightTriple
from agentrl.learner import losses
from agentrl.learner.batch import MicroBatch
from agentrl.learner.output_layer import score


class ValueHead(nn.Module):
    """V(s) from the hidden state of a state's last token: linear, fp32, 0 at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight_d = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values of hidden states of any leading shape, fp32."""
        return hidden.float() @ self.weight_d + self.bias


@dataclass(slots=True)
class TensorBatch:
    """A `MicroBatch` as tensors on the rank's device; `arrays` has its fields by name."""

    arrays: dict[str, Tensor]
    one_temperature: bool

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device, loss_temperature: float) -> TensorBatch:
        # Ray hands out read-only arrays; torch wants its own copy.
        arrays = {f.name: torch.tensor(getattr(batch, f.name)).to(device, non_blocking=True) for f in fields(batch)}
        return cls(arrays, bool((batch.temperature_N == loss_temperature).all()))

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.arrays[name]
        except KeyError as error:
            raise AttributeError(name) from error


class LossHead(nn.Module):
    """Everything after the last hidden state.  It uses the output layer's weight without owning it; under ZeRO-3 `rank`
    registers that weight as external, so that it is gathered for this module's forward and backward pass."""

    def __init__(self, output_layer: nn.Linear, value_head: ValueHead, loss: Loss) -> None:
        super().__init__()
        self.loss = loss
        self.__dict__["output_layer"] = output_layer
        self.__dict__["value_head"] = value_head

    def forward(
        self, hidden_BTd: Tensor, batch: TensorBatch, weights: WeightTriple, measure_terms: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss of one micro-batch and detached sums to log.

        The sum of the losses of all micro-batches of all ranks is the loss: every weight in the batch carries its global
        denominator.  `measure_terms` adds `square_norm/<term>`: the squared norm of the gradient of the weighted term
        with respect to `hidden_BTd`.  Tokens of different micro-batches are disjoint, so these squares add up.
        """
        kl_config, ppo_config, value_config = self.loss.kl, self.loss.ppo, self.loss.value
        scores = score(
            hidden_BTd[batch.row_N, batch.predictor_N],
            self.output_layer.weight,
            self.output_layer.bias,
            batch.token_ids_N,
            batch.support_ids_Nk,
            batch.temperature_N,
            kl_config.temperature,
            one_temperature=batch.one_temperature,
        )
        valid_Nk = batch.support_ids_Nk >= 0
        kl_N = losses.support_kl(
            scores.support_Nk, batch.support_logprobs_Nk, batch.support_tail_N, valid_Nk, kl_config.direction, kl_config.beta
        )
        scale = kl_config.temperature**2 if kl_config.scale_by_temperature_squared else 1.0
        ppo_terms = losses.ppo(
            scores.token_N,
            batch.old_logprobs_N,
            batch.behaviour_N,
            batch.advantages_N,
            ppo_config.clip,
            ppo_config.correction,
            ppo_config.importance_cap,
        )
        values_S = self.value_head(hidden_BTd[batch.row_S, batch.state_S])
        values_G = self.value_head(hidden_BTd[batch.row_G, batch.state_G])
        kl = scale * losses.masked_sum(kl_N, batch.kl_weights_N)
        ppo = losses.masked_sum(ppo_terms.loss_N, batch.ppo_weights_N)
        to_return = losses.masked_sum(losses.value_error(values_S, batch.returns_S), batch.return_weights_S)
        to_teacher = losses.masked_sum(losses.value_error(values_G, batch.teacher_values_G), batch.teacher_weights_G)
        value = value_config.return_weight * to_return + value_config.teacher_weight * to_teacher
        terms = {"kl": weights.kl * kl, "value": weights.value * value, "ppo": weights.ppo * ppo}
        total = terms["kl"] + terms["value"] + terms["ppo"]
        stats = {
            "loss/total": total,
            "loss/kl": kl,
            "loss/value_to_return": to_return,
            "loss/value_to_teacher": to_teacher,
            "loss/ppo": ppo,
        }
        with torch.no_grad():
            stats |= self._figures(scores.support_Nk, ppo_terms, scores.token_N, batch, valid_Nk)
        if measure_terms:
            for name, term in terms.items():
                (gradient,) = torch.autograd.grad(term, hidden_BTd, retain_graph=True, allow_unused=True)
                stats[f"square_norm/{name}"] = total.new_zeros(()) if gradient is None else gradient.float().square().sum()
        return total, {name: figure.detach() for name, figure in stats.items()}

    @staticmethod
    def _figures(
        support_Nk: Tensor, ppo_terms: losses.PpoTerms, logprobs_N: Tensor, batch: TensorBatch, valid_Nk: Tensor
    ) -> dict[str, Tensor]:
        """Means over the mini-batch, in the terms' own weights, so that they add up over micro-batches and ranks."""

        def mass(logprobs_Nk: Tensor) -> Tensor:
            mass_N = torch.where(valid_Nk, logprobs_Nk, -torch.inf).exp().sum(-1)
            return losses.masked_sum(mass_N, batch.kl_weights_N)

        approx_kl_N = losses.k3(batch.old_logprobs_N, logprobs_N)
        return {
            "kl/student_mass": mass(support_Nk),
            "kl/teacher_mass": mass(batch.support_logprobs_Nk),
            "ppo/ratio": losses.masked_sum(ppo_terms.ratio_N, batch.ppo_weights_N),
            "ppo/clip_share": losses.masked_sum(ppo_terms.clipped_N.float(), batch.ppo_weights_N),
            "ppo/kl_to_old": losses.masked_sum(approx_kl_N, batch.ppo_weights_N),
        }


class StudentModule(nn.Module):
    """forward(batch, weights, measure_terms) -> (loss, stats) for training; forward(batch) -> scores, under no_grad."""

    def __init__(self, model: nn.Module, value_head: ValueHead, loss: Loss) -> None:
        super().__init__()
        self.model = model
        head = _plain_output_layer(model)
        self.loss_head = LossHead(head, value_head, loss)
        self.score_head = ScoreHead(head, value_head)

    def forward(self, batch: TensorBatch, weights: WeightTriple | None = None, measure_terms: bool = False) -> Any:
        backbone = getattr(self.model, self.model.base_model_prefix)
        hidden_BTd = backbone(input_ids=batch.token_ids_BT, use_cache=False).last_hidden_state
        if weights is None:
            return self.score_head(hidden_BTd, batch)
        return self.loss_head(hidden_BTd, batch, weights, measure_terms)


class ScoreHead(nn.Module):
    """What the old policy is asked for; see `targets.RowScores`."""

    def __init__(self, output_layer: nn.Linear, value_head: ValueHead) -> None:
        super().__init__()
        self.__dict__["output_layer"] = output_layer
        self.__dict__["value_head"] = value_head

    def forward(self, hidden_BTd: Tensor, batch: TensorBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(logprobs_N, entropy_N, values_BT), the first two at each token's sampling temperature."""
        scores = score(
            hidden_BTd[batch.row_N, batch.predictor_N],
            self.output_layer.weight,
            self.output_layer.bias,
            batch.token_ids_N,
            batch.token_ids_N[:, None],
            batch.temperature_N,
            loss_temperature=1.0,
            one_temperature=bool((batch.temperature_N == 1.0).all()),
            entropy=True,
        )
        return scores.token_N, scores.entropy_N, self.value_head(hidden_BTd)


def _plain_output_layer(model: nn.Module) -> nn.Linear:
    """The output layer, if hidden states times its weight are the logits; ValueError for models that do more."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ValueError(
            f"the output layer of {type(model).__name__} is a {type(head).__name__}, not a plain linear layer: "
            "leave it out of lora.target_modules"
        )
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, key, None) not in (None, 1, 1.0):
            raise ValueError(f"{type(model).__name__} transforms its logits ({key}), which the learner does not support")
    return head
