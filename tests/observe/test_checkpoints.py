"""Only a whole checkpoint is ever resumed from."""

from __future__ import annotations

import pytest

from agentrl.observe.checkpoints import Checkpoints, step_of


def write(checkpoints: Checkpoints, step: int, text: str = "weights") -> None:
    with checkpoints.writing(step) as folder:
        (folder / "rank0").mkdir()
        (folder / "rank0" / "model.safetensors").write_text(text)


def test_there_is_none_at_first(tmp_path):
    assert Checkpoints(tmp_path / "c", keep=2).latest() is None


def test_the_latest_is_the_one_of_the_most_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    write(checkpoints, 10)
    assert step_of(checkpoints.latest()) == 10
    assert (checkpoints.latest() / "rank0" / "model.safetensors").read_text() == "weights"


def test_old_ones_are_pruned(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        write(checkpoints, step)
    assert [step_of(path) for path in checkpoints.completed()] == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00003", "step-00004"]


def test_one_that_broke_while_being_written_does_not_count_and_is_cleared_away(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    with pytest.raises(FileNotFoundError), checkpoints.writing(10) as folder:
        (folder / "no such folder" / "model").write_text("half")
    assert step_of(checkpoints.latest()) == 5
    write(checkpoints, 15)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00005", "step-00015"]


@pytest.mark.parametrize("damage", ["no marker", "short file", "missing file"])
def test_one_that_is_not_whole_is_passed_over(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    write(checkpoints, 10)
    newest = tmp_path / "step-00010"
    match damage:
        case "no marker":
            (newest / "DONE").unlink()
        case "short file":
            (newest / "rank0" / "model.safetensors").write_text("wei")
        case "missing file":
            (newest / "rank0" / "model.safetensors").unlink()
    assert step_of(checkpoints.latest()) == 5


def test_one_of_the_same_step_is_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5, "old")
    write(checkpoints, 5, "new")
    assert (checkpoints.latest() / "rank0" / "model.safetensors").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00005"]


def test_a_crash_in_the_middle_of_a_replacement_leaves_the_old_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5, "old")
    (tmp_path / "step-00005").rename(tmp_path / ".step-00005.old")
    assert (checkpoints.latest() / "rank0" / "model.safetensors").read_text() == "old"


def test_later_ones_are_dropped_when_the_run_goes_on_from_an_earlier_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (5, 10, 15):
        write(checkpoints, step)
    checkpoints.drop_after(5)
    assert [step_of(path) for path in checkpoints.completed()] == [5]
