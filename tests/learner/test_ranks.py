"""Ranks, micro-batches and ZeRO stages change nothing but the speed.  Correctness items 21, 23 and 27."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learner.lockstep import FIGURES, Answer, run_cases

pytestmark = pytest.mark.slow

ADAMW = {"type": "adamw", "lr": 1e-3}  # a larger one turns rounding of near-zero gradients into steps of its size
MUON = {"type": "muon"}
LORA = {"r": 4, "alpha": 8}
STAGES = (0, 1, 2, 3)


def case(model: Path, steps: int = 5, episodes: int = 4, **learner: object) -> dict[str, object]:
    return {"model": str(model), "steps": steps, "episodes": episodes, "learner": learner}


@pytest.fixture(scope="module")
def stages(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Answer]:
    """5 steps on 2 ranks, by kind of training and ZeRO stage."""
    kinds = {
        "full": {"optimizer": ADAMW},
        "lora": {"optimizer": ADAMW, "lora": LORA},
        "muon": {"optimizer": MUON},
        "checkpointed": {"optimizer": ADAMW, "gradient_checkpointing": True},
        "bfloat16": {"optimizer": ADAMW, "dtype": "bfloat16"},
        "bfloat16-muon": {"optimizer": MUON, "dtype": "bfloat16"},
    }
    keys = [(kind, stage) for kind in kinds for stage in STAGES]
    cases = [case(tiny_model_dir, zero_stage=stage, **kinds[kind]) for kind, stage in keys]
    return dict(zip(keys, run_cases(2, cases, tmp_path_factory.mktemp("stages")), strict=True))


def assert_same(answer: Answer, expected: Answer, tolerance: float) -> None:
    """Losses within `tolerance`, every gradient norm that both have within 1e-3 of itself."""
    assert answer["loss/total"] == pytest.approx(expected["loss/total"], abs=tolerance)
    for name in answer.keys() & expected.keys() - {"loss/total"}:
        assert answer[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-7), name


@pytest.mark.parametrize("stage", STAGES[1:])
@pytest.mark.parametrize(("kind", "tolerance"), [("full", 1e-4), ("lora", 1e-4), ("muon", 1e-3)])
def test_every_zero_stage_has_the_losses_of_stage_zero(
    stages: dict[tuple[str, int], Answer], kind: str, stage: int, tolerance: float
) -> None:
    """Muon orthogonalises in half precision, so that its last digits depend on the order of sums."""
    answer, expected = stages[kind, stage], stages[kind, 0]
    if kind == "muon":
        assert answer["loss/total"] == pytest.approx(expected["loss/total"], abs=tolerance)
    else:
        assert_same(answer, expected, tolerance)
        assert "grad_norm/total" in answer
    losses = answer["loss/total"]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["bfloat16", "bfloat16-muon"])
def test_in_bfloat16_every_zero_stage_learns_what_float32_does(
    stages: dict[tuple[str, int], Answer], kind: str, stage: int
) -> None:
    """Three digits of a number are kept, of a loss of many of them a little more."""
    losses = stages[kind, stage]["loss/total"]
    expected = stages["full" if kind == "bfloat16" else "muon", 0]["loss/total"]
    assert losses == pytest.approx(expected, abs=0.03)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_checkpointing_changes_no_loss(stages: dict[tuple[str, int], Answer], stage: int) -> None:
    assert_same(stages["checkpointed", stage], stages["full", 0], 1e-4)


def test_one_rank_of_four_micro_batches_equals_two_of_two_and_one_of_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    small = {"optimizer": ADAMW, "micro_batch_tokens": 20}  # every episode alone
    one, four = run_cases(
        1,
        [case(tiny_model_dir, 3, optimizer=ADAMW, micro_batch_tokens=8192), case(tiny_model_dir, 3, **small)],
        tmp_path,
    )
    (two,) = run_cases(2, [case(tiny_model_dir, 3, **small)], tmp_path)
    assert_same(four, one, 1e-6)
    assert_same(two, one, 1e-6)
    assert set(one) == set(two) == set(FIGURES)


def test_a_rank_with_nothing_to_train_does_not_hang_the_other(tiny_model_dir: Path, tmp_path: Path) -> None:
    cases = [case(tiny_model_dir, 2, 1, optimizer=ADAMW, zero_stage=stage) for stage in (0, 3)]
    alone = run_cases(1, [case(tiny_model_dir, 2, 1, optimizer=ADAMW)], tmp_path)[0]
    for answer in run_cases(2, cases, tmp_path):
        assert_same(answer, alone, 1e-4)
