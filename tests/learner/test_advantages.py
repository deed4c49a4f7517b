"""Advantages: the golden numbers, truncation, whitening.  Correctness items 17 to 20."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.config import Ppo
from agentrl.learner import advantages as adv
from agentrl.learner.rows import Row, build_rows
from agentrl.learner.targets import RowScores, set_targets
from agentrl.types import Trajectory
from tests.learner.examples import make_trajectory

GOLDEN = {"turn_tokens": (2, 2), "rewards": (0.0, 1.0), "observation": 200}


def targets(trajectory: Trajectory, value: float | np.ndarray = 0.5, **ppo: object) -> Row:
    """The row of a trajectory after `set_targets`, with this value at every token."""
    (row,) = build_rows([trajectory])
    values_T = np.full(len(row.token_ids_T), value, np.float32) if np.isscalar(value) else value
    scores = RowScores(row.behaviour_N, np.zeros_like(row.behaviour_N), values_T)
    set_targets([row], [scores], [trajectory], Ppo(whiten=False, **ppo))
    return row


def test_token_gae_carries_over_observations_and_puts_the_reward_on_the_last_token() -> None:
    row = targets(make_trajectory(0, **GOLDEN), credit="token")
    np.testing.assert_allclose(row.advantages_N, [0.4286875, 0.45125, 0.475, 0.5], atol=1e-6)
    np.testing.assert_allclose(row.returns_S, row.advantages_N + 0.5, atol=1e-6)


def test_turn_gae_takes_the_value_before_the_turn_and_spreads_its_advantage_over_the_tokens() -> None:
    row = targets(make_trajectory(0, **GOLDEN), credit="turn")
    np.testing.assert_allclose(row.advantages_N, [0.475, 0.475, 0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(row.returns_S, [0.975, 1.0], atol=1e-6)
    assert row.states_S.tolist() == [5, 207]  # 6 prompt tokens, 2 of the turn, 200 observed


def test_a_truncated_episode_is_bootstrapped_with_the_state_after_its_last_step() -> None:
    trajectory = make_trajectory(0, (2, 2), rewards=(0.0, 0.0), terminated=False)
    values_T = np.zeros(len(trajectory.samples[0].token_ids_T), np.float32)
    values_T[-1] = 0.8
    assert targets(trajectory, values_T, gamma=0.5, gae_lambda=1.0).returns_S.tolist() == pytest.approx([0.2, 0.4])


def test_a_terminated_episode_is_not_bootstrapped() -> None:
    trajectory = make_trajectory(0, (2, 2), rewards=(0.0, 0.0))
    values_T = np.zeros(len(trajectory.samples[0].token_ids_T), np.float32)
    values_T[-1] = 0.8
    assert targets(trajectory, values_T).returns_S.tolist() == [0.0, 0.0]


def test_a_crashed_episode_is_left_out_and_is_not_a_reward_of_zero() -> None:
    assert build_rows([make_trajectory(0, failure="the environment raised")]) == []


@pytest.mark.parametrize("truncated", [False, True])
def test_gae_equals_rllibs_value_targets(truncated: bool) -> None:
    from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

    rng = np.random.default_rng(0)
    rewards, values, bootstrap = rng.normal(size=9), rng.normal(size=9), 0.7
    ours = adv.gae(rewards, values, bootstrap if truncated else 0.0, 0.97, 0.9) + values
    # RLlib wants one more step, whose value is the bootstrap.
    theirs = compute_value_targets(
        values=np.append(values, bootstrap),
        rewards=np.append(rewards, 0.0),
        terminateds=np.array([False] * 8 + [not truncated, False]),
        truncateds=np.array([False] * 8 + [truncated, True]),
        gamma=0.97,
        lambda_=0.9,
    )
    np.testing.assert_allclose(ours, theirs[:9], rtol=1e-6)


def test_turns_of_others_are_the_environments_doing() -> None:
    rewards = adv.student_rewards(np.array([9.0, 1.0, 2.0, 4.0, 8.0]), np.array([False, True, False, False, True]))
    assert rewards.tolist() == [7.0, 8.0]


def test_an_injected_turn_is_no_step_and_gets_no_advantage() -> None:
    authors = ("student", "injected", "student")
    row = targets(make_trajectory(0, (2, 3, 2), rewards=(0.0, -0.25, 1.0), authors=authors), gae_lambda=1.0)
    np.testing.assert_allclose(row.advantages_N, [0.25, 0.25, 0.5, 0.5], atol=1e-6)


def test_whitening_uses_the_tokens_of_the_whole_batch() -> None:
    trajectories = [make_trajectory(0, (2, 4)), make_trajectory(1, (6, 1), rewards=(0.0, -1.0))]
    rows = build_rows(trajectories)
    scores = [
        RowScores(r.behaviour_N, r.behaviour_N, np.linspace(0, 1, len(r.token_ids_T), dtype=np.float32)) for r in rows
    ]
    set_targets(rows, scores, trajectories, Ppo())
    everything = np.concatenate([row.advantages_N for row in rows])
    assert everything.mean() == pytest.approx(0.0, abs=1e-6)
    assert everything.std() == pytest.approx(1.0, abs=1e-6)


def test_the_teachers_values_are_held_against_the_returns() -> None:
    """Returns 1 and 2 of turns 0 and 2 against values 1.5 and 2.5; turn 1 has no value.  One half too much."""
    trajectory = make_trajectory(0, (2, 3, 2), rewards=(-1.0, 0.0, 2.0))
    for guidance, value in zip(trajectory.guidance, (1.5, None, 2.5), strict=True):
        guidance.value = value
    (row,) = build_rows([trajectory])
    scores = RowScores(row.behaviour_N, row.behaviour_N, np.zeros(len(row.token_ids_T), np.float32))
    figures = set_targets([row], [scores], [trajectory], Ppo(gae_lambda=1.0))
    assert figures["value/teacher_share"] == pytest.approx(2 / 3)
    assert figures["value/teacher_explained_variance"] == pytest.approx(1.0)
    assert figures["value/teacher_bias"] == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [[], [3.0], [2.0, 2.0]])
def test_whitening_leaves_alone_what_has_no_scale(tokens: list[float]) -> None:
    assert adv.whiten(np.array(tokens)).tolist() == tokens


def test_explained_variance_is_one_for_right_values_and_zero_for_constant_ones() -> None:
    returns = np.array([0.0, 1.0, 2.0])
    assert adv.explained_variance(returns, returns) == 1.0
    assert adv.explained_variance(np.full(3, 0.3), returns) == pytest.approx(0.0)


def test_effective_sample_share_is_one_without_a_gap_and_one_over_n_for_one_dominant_token() -> None:
    assert adv.effective_sample_share(np.zeros(8)) == 1.0
    assert adv.effective_sample_share(np.array([50.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
