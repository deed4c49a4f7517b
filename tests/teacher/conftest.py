"""A teacher in process: the tiny model with padded vocabulary rows and a calibrated value head, and ways to ask it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.teacher.api import create_app
from agentrl.teacher.client import ScoreItem, TeacherClient
from agentrl.teacher.hf_scorer import HfScorer

PADDED_ROWS = 448
LOCAL = ("127.0.0.1", 50000)


@pytest.fixture(scope="session")
def teacher_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with 448 output rows for a smaller vocabulary; the padding rows are the likeliest by far."""
    folder = tmp_path_factory.mktemp("teacher") / "tiny-teacher"
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    vocabulary = len(AutoTokenizer.from_pretrained(tiny_model_dir))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model.resize_token_embeddings(PADDED_ROWS, mean_resizing=False)
        model.get_output_embeddings().weight[vocabulary:] = 1.0
        head = {"weight": torch.randn(1, model.config.hidden_size), "bias": torch.tensor([0.25])}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    (folder / "value_head").mkdir()
    save_file(head, folder / "value_head/weights.safetensors")
    (folder / "value_head/config.json").write_text(json.dumps({"gamma": 0.9, "scale": 1.0, "calibrated": True}))
    return folder


@pytest.fixture
def teacher_copy(teacher_dir: Path, tmp_path: Path) -> Path:
    """A copy of the teacher's folder that a test may spoil."""
    return Path(shutil.copytree(teacher_dir, tmp_path / "copy"))


@pytest.fixture(scope="session")
def scorer(teacher_dir: Path) -> Iterator[HfScorer]:
    scorer = HfScorer.load(teacher_dir, dtype="float32", batch_tokens=256)
    yield scorer
    scorer.close()


@pytest.fixture
def http(scorer: HfScorer) -> Iterator[TestClient]:
    with TestClient(create_app(scorer), client=LOCAL) as client:
        yield client


@pytest.fixture
def transport() -> Callable[[TestClient], httpx.MockTransport]:
    """An app in process, as a transport for `TeacherClient`."""

    def make(app: TestClient) -> httpx.MockTransport:
        def forward(request: httpx.Request) -> httpx.Response:
            answer = app.request(
                request.method, request.url.path, content=request.content, headers=dict(request.headers)
            )
            return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

        return httpx.MockTransport(forward)

    return make


@pytest.fixture
def teacher(http: TestClient, transport: Callable[[TestClient], httpx.MockTransport]) -> Iterator[TeacherClient]:
    with TeacherClient("http://127.0.0.1", timeout_s=30.0, transport=transport(http)) as client:
        yield client


@pytest.fixture(scope="session")
def make_item(scorer: HfScorer) -> Callable[..., ScoreItem]:
    """An item of random tokens with the given turns."""

    def make(
        length: int,
        *turns: tuple[int, int],
        top_k: int = 4,
        temperature: float = 1.0,
        named: np.ndarray | None = None,
        seed: int = 0,
    ) -> ScoreItem:
        tokens_T = np.random.default_rng([seed, length]).integers(0, scorer.identity.vocabulary, length, dtype=np.int32)
        return ScoreItem(tokens_T, np.array(turns, np.int32), named, top_k, temperature)

    return make


@pytest.fixture(scope="session")
def oracle(teacher_dir: Path, scorer: HfScorer) -> Callable[[np.ndarray, float], np.ndarray]:
    """Log q [T, V] at each position by transformers' full logits and torch's log-softmax without the padding rows."""
    model = AutoModelForCausalLM.from_pretrained(teacher_dir)

    @torch.no_grad()
    def logprobs_T_V(tokens_T: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        logits = model(input_ids=torch.from_numpy(tokens_T.astype(np.int64))[None]).logits[0]
        return (logits[:, : scorer.identity.vocabulary] / temperature).log_softmax(-1).numpy()

    return logprobs_T_V
