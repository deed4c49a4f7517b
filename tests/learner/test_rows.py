"""From trajectories to micro-batches: masks, positions, weights, dealing.  Correctness items 3, 4, 19, 21 to 23."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentrl.learner.batch import collate, weigh
from agentrl.learner.packing import deal, mean_weights, pack
from agentrl.learner.rows import build_rows
from tests.learner.examples import make_trajectory


def test_only_tokens_that_the_student_sampled_are_scored() -> None:
    authors = ("student", "teacher", "injected", "student")
    trajectory = make_trajectory(0, (2, 3, 2, 1), authors=authors, rewards=(0.0,) * 4)
    (row,) = build_rows([trajectory])
    sampled = np.flatnonzero(trajectory.samples[0].trainable_T)
    assert row.token_ids_N.tolist() == trajectory.samples[0].token_ids_T[sampled].tolist()
    assert row.turn_N.tolist() == [0, 0, 3]


def test_the_logit_before_a_token_scores_it() -> None:
    trajectory = make_trajectory(0, (2, 3))
    (row,) = build_rows([trajectory])
    assert row.predictors_N.tolist() == [5, 6, 11, 12, 13]
    assert (row.token_ids_T[row.predictors_N + 1] == row.token_ids_N).all()
    assert row.states_G.tolist() == [5, 11]


def test_a_pad_that_looks_like_a_token_changes_no_mask() -> None:
    trajectory = make_trajectory(0, (3,))
    trajectory.samples[0].token_ids_T[:] = 0  # the id that pads have
    batch = collate(build_rows([trajectory, make_trajectory(1, (3, 3))]))
    assert batch.token_ids_B_T.shape == (2, 6 + 6 + 8)
    assert batch.row_N.tolist() == [0] * 3 + [1] * 6


def test_a_turn_without_guidance_is_masked_and_is_not_agreement() -> None:
    (row,) = build_rows([make_trajectory(0, (2, 2), guided=(False, True))])
    weigh([row], "token-mean")
    assert row.kl_weights_N.tolist() == [0.0, 0.0, 0.5, 0.5]
    assert row.ppo_weights_N.tolist() == [0.25] * 4


def test_a_missing_teacher_value_is_masked() -> None:
    trajectory = make_trajectory(0, (2, 2))
    trajectory.guidance[0].value = None
    (row,) = build_rows([trajectory])
    weigh([row], "token-mean")
    assert row.teacher_weights_G.tolist() == [0.0, 1.0]
    assert np.isfinite(collate([row]).teacher_values_G).all()


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token-mean", [1 / 5] * 5),
        ("turn-mean", [1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6]),
        ("trajectory-mean", [1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4]),
    ],
)
def test_the_mean_is_a_named_choice(aggregate: str, expected: list[float]) -> None:
    turns, trajectories = np.array([0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1])
    weights = mean_weights(aggregate, turns, trajectories, np.ones(5, np.bool_))
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_weights_count_over_all_rows_whatever_their_micro_batch() -> None:
    rows = build_rows([make_trajectory(i, (2 + i, 3)) for i in range(4)])
    weigh(rows, "token-mean")
    assert sum(row.kl_weights_N.sum() for row in rows) == pytest.approx(1.0)
    assert np.unique(np.concatenate([row.ppo_weights_N for row in rows])).tolist() == [np.float32(1 / 26)]


def test_guidance_of_different_widths_is_padded() -> None:
    rows = build_rows([make_trajectory(0, (2,), support=3), make_trajectory(1, (2,), support=5)])
    batch = collate(rows)
    assert (batch.support_ids_N_k[:2, 3:] == -1).all()
    assert (batch.support_logprobs_N_k[:2, 3:] == -np.inf).all()
    assert (batch.support_ids_N_k[2:] >= 0).all()


def test_guidance_of_another_length_is_refused_by_name() -> None:
    trajectory = make_trajectory(3, (4,))
    trajectory.guidance = make_trajectory(3, (5,)).guidance
    with pytest.raises(ValueError, match=r"episode-3: guidance of turn 0 has shapes"):
        build_rows([trajectory])


def test_a_trainable_token_without_a_behaviour_logprob_is_refused_by_name() -> None:
    trajectory = make_trajectory(3, (4,))
    trajectory.samples[0].logprobs_T[7] = np.nan
    with pytest.raises(ValueError, match=r"episode-3: a trainable token has no finite behaviour logprob"):
        build_rows([trajectory])


def test_an_episode_of_two_samples_keeps_one_count_of_turns() -> None:
    first, second = make_trajectory(0, (2,)), make_trajectory(1, (3,))
    sample = second.samples[0]
    sample.turn_ids_T = np.where(sample.turn_ids_T == 0, 1, sample.turn_ids_T).astype(np.int16)
    turn = replace(second.turns[0], index=1, sample=1)
    guide = second.guidance[0]
    guide.turn = 1
    both = replace(
        first, samples=[*first.samples, sample], turns=[*first.turns, turn], guidance=[*first.guidance, guide]
    )
    rows = build_rows([both, make_trajectory(2, (1,))])
    assert [row.turn_N.tolist() for row in rows] == [[0, 0], [1, 1, 1], [2]]
    assert [row.ends_episode for row in rows] == [False, True, True]


def test_micro_batches_stay_within_the_token_budget_padding_included() -> None:
    lengths = [30, 7, 12, 29, 8, 11, 3]
    groups = pack(lengths, 40)
    assert sorted(i for group in groups for i in group) == list(range(7))
    assert all(len(group) * max(lengths[i] for i in group) <= 40 for group in groups)


def test_a_row_longer_than_the_budget_stands_alone() -> None:
    assert pack([100, 5], 40) == [[0], [1]]


def test_a_small_batch_is_divided_over_the_ranks() -> None:
    assert len(pack([10] * 8, 8192, parts=2)) == 2


def test_every_rank_gets_the_same_number_of_micro_batches() -> None:
    hands = deal([50, 30, 20], 2)
    assert hands == [[0, None], [1, 2]]


def test_a_rank_without_work_gets_a_token_that_weighs_nothing() -> None:
    batch = collate([])
    assert batch.token_ids_B_T.shape == (1, 2)
    assert batch.kl_weights_N.tolist() == batch.ppo_weights_N.tolist() == [0.0]
