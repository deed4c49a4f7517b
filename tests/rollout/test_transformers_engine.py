"""The plain sampler, the oracle of other tests, against a forward pass without a cache."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from agentrl.config import TransformersEngine
from agentrl.rollout.engine import EngineSettings, Sampling, WeightError
from agentrl.rollout.transformers_engine import TransformersSampler
from agentrl.types import PolicyVersion
from tests.learner.examples import VOCABULARY

PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def model(tiny_model_dir):
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


@pytest.fixture
def sampler(tiny_model_dir, model) -> TransformersSampler:
    stop = (model.config.eos_token_id,)
    return TransformersSampler(
        EngineSettings(str(tiny_model_dir), "float32", 1024, TransformersEngine(type="transformers"), stop, VOCABULARY)
    )


@torch.inference_mode()
def logprobs_of(model, ids: list[int], start: int, temperature: float = 1.0) -> np.ndarray:
    logits_T_V = model(torch.tensor([ids])).logits[0, start - 1 : -1, :VOCABULARY] / temperature
    return torch.log_softmax(logits_T_V, -1).gather(1, torch.tensor(ids[start:])[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_logprobs_are_those_of_the_sampling_distribution(sampler, model, temperature):
    made = asyncio.run(sampler.generate(PROMPT, Sampling(temperature, 24, seed=3)))
    expected = logprobs_of(model, [*PROMPT, *made.token_ids], len(PROMPT), temperature or 1.0)
    np.testing.assert_allclose(made.logprobs, expected, atol=1e-5, rtol=0)
    assert max(made.token_ids) < VOCABULARY


def test_a_seed_decides_what_is_sampled_and_a_stop_token_ends_it(sampler, model):
    def turn(seed: int):
        return asyncio.run(sampler.generate(PROMPT, Sampling(2.0, 400, seed)))

    assert turn(1).token_ids == turn(1).token_ids != turn(2).token_ids
    stopped = [made for made in map(turn, range(4)) if made.finish == "stop"]
    assert stopped
    assert all(made.token_ids.index(model.config.eos_token_id) == len(made.token_ids) - 1 for made in stopped)


def test_new_weights_are_the_ones_that_score_and_a_tensor_that_does_not_fit_is_named(sampler, model, tmp_path):
    tied = set(model.all_tied_weights_keys or ())
    tensors = {name: t * 0.9 for name, t in model.state_dict().items() if name not in tied}
    save_file(tensors, path := str(tmp_path / "new.safetensors"))
    old = asyncio.run(sampler.score(PROMPT))
    np.testing.assert_allclose(old, logprobs_of(model, PROMPT, 1), atol=1e-5, rtol=0)
    asyncio.run(sampler.load_weights(path, PolicyVersion(3)))
    assert sampler.version == 3
    changed = AutoModelForCausalLM.from_config(model.config).eval()
    changed.load_state_dict({name: t * 0.9 for name, t in model.state_dict().items()})
    np.testing.assert_allclose(asyncio.run(sampler.score(PROMPT)), logprobs_of(changed, PROMPT, 1), atol=1e-5, rtol=0)
    name = sorted(tensors)[2]
    save_file({other: t for other, t in tensors.items() if other != name}, path)
    with pytest.raises(WeightError, match=f"do not fit the model: {name!r} is amiss"):
        asyncio.run(sampler.load_weights(path, PolicyVersion(4)))
