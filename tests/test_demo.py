"""The demo models: what is committed is what the checksums say, and the recipe that makes them learns."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.demo.build import PAIRS, ChecksumError, ModelsExist, build, verify
from agentrl.demo.dialogues import Domain, make_env, play_expert
from agentrl.demo.pretrain import Ladder, pretrain

REPO = Path(__file__).resolve().parent.parent
MODELS = REPO / "models"


@pytest.mark.parametrize("name", PAIRS)
def test_the_committed_models_are_the_ones_of_their_checksums(name: str) -> None:
    verify(MODELS / name)


@pytest.mark.parametrize("name", PAIRS)
def test_the_committed_models_were_made_by_the_recipes_that_are_here(name: str) -> None:
    for role, stages in {"teacher": PAIRS[name].teacher, "student": PAIRS[name].student}.items():
        made_by = json.loads((MODELS / name / role / "recipe.json").read_text(encoding="utf-8"))
        assert made_by == json.loads(json.dumps([asdict(stage) for stage in stages]))


def test_the_committed_models_are_small() -> None:
    assert sum(p.stat().st_size for p in MODELS.rglob("*.safetensors")) <= 10_000_000


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "config.json").write_text("{}")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  student/config.json\n")
    with pytest.raises(ChecksumError, match=r"student/config.json"):
        verify(tmp_path)


def test_models_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "food_order_zh").mkdir()
    with pytest.raises(ModelsExist, match="food_order_zh is there already"):
        build(tmp_path, Console(), small=True)
    assert [p.name for p in tmp_path.iterdir()] == ["food_order_zh"], "nothing was built"


def test_the_ladder_rises_when_the_running_loss_falls_and_only_while_it_may() -> None:
    ladder = Ladder(max_level=3, raise_below=0.05)
    rises = [ladder.record(0.0, may_rise=True) for _ in range(200)]
    assert (ladder.level, sum(rises)) == (3, 2)
    kept = Ladder(max_level=3, raise_below=0.05)
    assert not any(kept.record(0.0, may_rise=False) for _ in range(200))


@pytest.mark.slow
def test_injected_mistakes_are_read_and_never_trained_on() -> None:
    from transformers import AutoTokenizer

    from agentrl.rollout.chat import make_renderer

    renderer = make_renderer(AutoTokenizer.from_pretrained(MODELS / "food_order" / "teacher"), "chatml")
    env = make_env(Domain("agentrl/FoodOrder-v0", "en"))
    plain = play_expert(env, renderer, level=2, task=5, language="en", seed=1)
    wrong = play_expert(env, renderer, level=2, task=5, language="en", seed=1, mistakes=0.4)
    assert len(wrong.token_ids_T) > len(plain.token_ids_T)
    text = renderer.tokenizer.decode(wrong.token_ids_T[~wrong.target_T])
    assert "error" in text
    assert "error" not in renderer.tokenizer.decode(wrong.token_ids_T[wrong.target_T])
    assert (wrong.return_K[:-1] != 0).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_one_command_makes_a_small_pair_that_learns(tmp_path: Path) -> None:
    said = io.StringIO()
    build(tmp_path, Console(file=said, width=200), names=["food_order_zh"], small=True)
    losses = [float(loss) for loss in re.findall(r"teacher 1/1 \d+/120 level 1 loss ([0-9.]+)\n", said.getvalue())]
    assert losses[0] > 1.0, "after 50 steps"
    assert losses[-1] < 0.5, "after 120"
    verify(tmp_path / "food_order_zh")
    assert [path.name for path in tmp_path.iterdir()] == ["food_order_zh"], "nothing else is left"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    start = tmp_path / "tokenizer"
    start.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "food_order_zh/student" / name, start)
    recipe = replace(PAIRS["food_order_zh"].student[0], steps=8)
    losses = [[figures["loss"] for _, figures in pretrain(recipe, start, tmp_path / name)] for name in ("a", "b")]
    assert losses[0] == losses[1]
    assert losses[0][0] > 3.0, "it starts from nothing"
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
