"""The demo models: what is committed is what the checksums say, and the recipe that makes them learns."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.demo.build import PAIRS, ChecksumError, ModelsExist, build, verify
from agentrl.demo.dialogues import Domain, make_env, play_expert
from agentrl.demo.pretrain import Ladder, Recipe, pretrain

REPO = Path(__file__).resolve().parent.parent
MODELS = REPO / "models"


@pytest.mark.parametrize("name", PAIRS)
def test_the_committed_models_are_the_ones_of_their_checksums(name: str) -> None:
    verify(MODELS / name)


@pytest.mark.parametrize("name", PAIRS)
def test_the_committed_models_were_made_by_the_recipes_that_are_here(name: str) -> None:
    for role, stages in {"teacher": PAIRS[name].teacher, "student": PAIRS[name].student}.items():
        made_by = json.loads((MODELS / name / role / "recipe.json").read_text(encoding="utf-8"))
        assert made_by == json.loads(json.dumps(asdict(stages[-1])))


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
def test_a_small_model_learns_from_the_recipe_and_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    recipe = Recipe(
        hidden=64, layers=2, heads=1, intermediate=128, domains=(Domain("agentrl/FoodOrder-v0", "en"),), steps=60,
        max_level=1, processes=1,
    )  # fmt: skip
    losses = [
        [f["loss"] for _, f in pretrain(recipe, MODELS / "food_order" / "student", tmp_path / name)]
        for name in ("a", "b")
    ]
    assert losses[0][-1] < 1.0, "from 7.0 at the start"
    assert losses[0] == losses[1]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
