"""What every test may count on: an offline process, a Ray of its own, a tiny model.

The environment variables are set at import, before any test imports ray, torch or vllm: each of the three reads its
settings once, at its own import, and hands them down to the processes that it starts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent

_RAY_DIR = Path(tempfile.mkdtemp(prefix="agentrl-ray-"))  # short: Ray's socket paths must stay under 108 bytes
_TOKEN = _RAY_DIR / "token"
_TOKEN.write_text(secrets.token_hex(32), encoding="ascii")
_TOKEN.chmod(0o600)

os.environ.update(
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="passive",
    CUDA_DEVICE_ORDER="PCI_BUS_ID",
    DS_ACCELERATOR=os.environ.get("DS_ACCELERATOR", "cpu"),
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # every port on loopback, see agentrl/cluster.py
    RAY_process_group_cleanup_enabled="1",  # a killed actor takes its engine process with it
    # Token authentication, said aloud: Ray's own default depends on whether a token file lies in the home folder.
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN_PATH=str(_TOKEN),
)
for _name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_JOB_ID"):  # a cluster of the developer's is never joined
    os.environ.pop(_name, None)
# Ray workers and vLLM's engine process import agentrl and envs from here, whatever folder pytest was started in.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPO), os.environ.get("PYTHONPATH"))))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_RAY_DIR, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """A Ray of this test session alone, 8 logical CPUs on loopback; the value is its address.

    The object store is small and the dashboard is off, so that it fits beside everything else on two cores.
    """
    import ray

    for attempts_left in (2, 1, 0):
        try:
            context = ray.init(
                address="local",
                num_cpus=8,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=512 * 1024**2,
                _temp_dir=str(_RAY_DIR / "ray"),
                log_to_driver=True,
                logging_level="WARNING",
            )
            break
        except Exception as error:  # Ray's own 30 s for a node to come up are few on busy cores
            if not attempts_left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    yield context.address_info["address"]
    ray.shutdown()


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "You are a helpful assistant that orders food.",
    "I would like two bowls of miso ramen, please. 我想要两碗拉面,谢谢。",
    '<tool_call>\n{"name": "add_item", "arguments": {"item": "miso-ramen", "quantity": 2}}\n</tool_call>',
    "error: no such dish. Your order is placed.",
    "system user assistant tool",
)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama (0.4 M parameters, float32, tied embeddings, head size 64) and its ChatML tokenizer.

    The tokenizer has 384 ids and the model 400 rows, as published models have.  The same bytes in every session.
    Embeddings are tied because that is where engines go stale after a weight sync; the weights are spread widely enough
    that the next-token distribution is far from uniform.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw.train_from_iterator(
        _CORPUS * 4,
        trainers.BpeTrainer(
            vocab_size=384,
            special_tokens=specials,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).to(torch.float32)
    folder = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return folder
