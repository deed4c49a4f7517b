"""The loss inside the module's forward: masks, term gradients, value head.  Correctness items 4, 6, 21, 23, 25, 28."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config import Loss, WeightTriple
from agentrl.learner import module as student
from agentrl.learner.batch import MicroBatch, collate, weigh
from agentrl.learner.module import StudentModule, TensorBatch, ValueHead
from agentrl.learner.rows import Row, build_rows, probe_row
from tests.learner.examples import VOCABULARY, make_trajectory, without_guidance

WEIGHTS = WeightTriple(kl=0.7, value=0.2, ppo=0.1)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)


def make_module(model: torch.nn.Module, value: float = 0.3, **loss: object) -> StudentModule:
    own = copy.deepcopy(model)
    head = ValueHead(own.config.hidden_size)
    with torch.no_grad():
        head.weight.fill_(value)
    return StudentModule(own, head, VOCABULARY, Loss.model_validate(loss))


def make_rows(seeds: range = range(4)) -> list[Row]:
    """Weighed rows with old logprobs, advantages and returns that are all different."""
    rows = build_rows([make_trajectory(seed, (2 + seed, 3)) for seed in seeds])
    for row in rows:
        row.old_logprobs_N = row.behaviour_N + np.float32(0.1)
        row.advantages_N = np.linspace(-1, 1, len(row.token_ids_N), dtype=np.float32)
        row.states_S, row.turn_S = row.states_G, row.turn_G
        row.returns_S = np.linspace(0, 1, len(row.turn_S), dtype=np.float32)
    weigh(rows, "token-mean")
    return rows


def tensors(batch: MicroBatch, temperature: float = 1.0) -> TensorBatch:
    return TensorBatch.of(batch, torch.device("cpu"), temperature)


def gradients(module: StudentModule, batches: list[MicroBatch]) -> list[torch.Tensor]:
    for batch in batches:
        module(tensors(batch), WEIGHTS)[0].backward()
    head = module.loss_head.value_head
    return [p.grad for p in (*module.parameters(), *head.parameters())]


def test_four_micro_batches_give_the_gradient_of_one(model: torch.nn.Module) -> None:
    rows = make_rows()
    whole = gradients(make_module(model), [collate(rows)])
    parts = gradients(make_module(model), [collate([row]) for row in rows])
    for part, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=5e-6)


def test_an_empty_micro_batch_runs_backward_and_adds_nothing(model: torch.nn.Module) -> None:
    module = make_module(model)
    loss, _ = module(tensors(collate([])), WEIGHTS, True)
    assert loss.item() == 0.0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


def test_episodes_without_a_teacher_give_no_kl_and_finite_gradients(model: torch.nn.Module) -> None:
    module = make_module(model)
    rows = build_rows([without_guidance(make_trajectory(0))])
    weigh(rows, "token-mean")
    loss, figures = module(tensors(collate(rows)), WEIGHTS, True)
    loss.backward()
    assert figures["loss/kl"].item() == figures["value/to_teacher"].item() == 0.0
    assert all(torch.isfinite(p.grad).all() for p in (*module.parameters(), *module.loss_head.value_head.parameters()))


def test_logits_are_divided_by_the_temperature_of_their_episode(model: torch.nn.Module) -> None:
    rows = build_rows([make_trajectory(0, temperature=0.5), make_trajectory(1, temperature=2.0)])
    with torch.no_grad():
        logprobs_N, _, _ = make_module(model)(tensors(collate(rows)))
        logits_B_T_V = model(torch.tensor(np.stack([row.token_ids_T for row in rows]))).logits[..., :VOCABULARY]
    expected = [
        torch.log_softmax(logits_B_T_V[b, row.predictors_N] / row.temperature, -1)[range(len(ids)), ids]
        for b, row in enumerate(rows)
        for ids in [row.token_ids_N]
    ]
    torch.testing.assert_close(logprobs_N, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_padding_changes_no_logprob(model: torch.nn.Module) -> None:
    module = make_module(model)
    rows = [probe_row(list(range(5, 12))), probe_row(list(range(20, 50)))]
    with torch.no_grad():
        together = module(tensors(collate(rows)))[0]
        alone = module(tensors(collate(rows[:1])))[0]
    torch.testing.assert_close(together[:6], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("term", ["kl", "value", "ppo"])
def test_the_gradient_norm_of_a_term_is_that_of_the_weighted_term_at_the_hidden_states(
    model: torch.nn.Module, term: str
) -> None:
    module, rows = make_module(model), make_rows()
    squares = [module(tensors(collate([row])), WEIGHTS, True)[1][f"square_norm/{term}"] for row in rows]
    only = WeightTriple(**{name: getattr(WEIGHTS, name) if name == term else 0.0 for name in ("kl", "value", "ppo")})
    batch = tensors(collate(rows))
    hidden_B_T_H = module.model.model(input_ids=batch.token_ids_B_T).last_hidden_state.detach().requires_grad_()
    module.loss_head(hidden_B_T_H, batch, only, False)[0].backward()
    assert torch.stack(squares).sum().sqrt().item() == pytest.approx(hidden_B_T_H.grad.norm().item(), rel=1e-4)


def test_the_square_of_the_temperature_is_a_switch(model: torch.nn.Module) -> None:
    rows = make_rows()
    on, off = (
        make_module(model, kl={"temperature": 2.0, "scale_by_temperature_squared": scaled})(
            tensors(collate(rows), 2.0), WEIGHTS
        )[1]["loss/kl"]
        for scaled in (True, False)
    )
    assert on.item() == pytest.approx(4 * off.item(), rel=1e-6)


def test_the_value_head_starts_at_zero_in_fp32_outside_of_the_module(model: torch.nn.Module) -> None:
    head = ValueHead(model.config.hidden_size)
    module = StudentModule(model, head, VOCABULARY, Loss())
    assert not any(parameter.any() for parameter in head.parameters())
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert not {id(p) for p in head.parameters()} & {id(p) for p in module.parameters()}
    assert head(torch.ones(3, model.config.hidden_size, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_model_that_transforms_its_logits_is_refused(model: torch.nn.Module) -> None:
    odd = copy.deepcopy(model)
    odd.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        student.plain_output_layer(odd)
