"""Hand-made trajectories and jobs for the learner's tests.  Every number comes from the seed given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agentrl.config import Job, parse_job
from agentrl.types import (
    AssistantMessage,
    EpisodeSpec,
    Label,
    PolicyVersion,
    Sample,
    Trajectory,
    Turn,
    TurnGuidance,
)

VOCABULARY = 384
PROMPT = 6
OBSERVATION = 4


def make_trajectory(
    seed: int,
    turn_tokens: tuple[int, ...] = (3, 5),
    rewards: tuple[float, ...] | None = None,
    authors: tuple[str, ...] | None = None,
    guided: tuple[bool, ...] | None = None,
    observation: int = OBSERVATION,
    vocabulary: int = VOCABULARY,
    support: int = 8,
    temperature: float = 1.0,
    terminated: bool = True,
    failure: str | None = None,
) -> Trajectory:
    """One sample: prompt, then turns of `turn_tokens` tokens with `observation` tokens after each."""
    rng = np.random.default_rng(seed)
    count = len(turn_tokens)
    rewards = rewards or tuple([0.0] * (count - 1) + [1.0])
    authors = authors or ("student",) * count
    guided = guided or (True,) * count
    total = PROMPT + sum(turn_tokens) + observation * count
    token_ids = rng.integers(0, vocabulary, total).astype(np.int32)
    turn_ids = np.full(total, -1, np.int16)
    logprobs = np.full(total, np.nan, np.float32)
    trainable = np.zeros(total, np.bool_)
    turns: list[Turn] = []
    guidance: list[TurnGuidance | None] = []
    position = PROMPT
    for index, tokens in enumerate(turn_tokens):
        inside = slice(position, position + tokens)
        turn_ids[inside] = index
        if authors[index] == "student":
            logprobs[inside] = -rng.uniform(1.0, 6.0, tokens)
            trainable[inside] = True
        turns.append(make_turn(index, position, position + tokens, authors[index], rewards[index]))
        guidance.append(make_guidance(rng, index, token_ids[inside], vocabulary, support) if guided[index] else None)
        position += tokens + observation
    return Trajectory(
        spec=EpisodeSpec(f"episode-{seed}", "agentrl/FoodOrder-v0", 1, seed, seed, temperature=temperature),
        opening=(),
        tools=[],
        samples=[Sample(token_ids, turn_ids, logprobs, trainable)],
        turns=turns,
        terminated=terminated,
        truncated=not terminated,
        success=terminated,
        signature="",
        oracle_turns=count,
        wall_s=0.0,
        failure=failure,
        guidance=guidance,
    )


def make_turn(index: int, start: int, end: int, author: Any, reward: float) -> Turn:
    return Turn(
        index=index,
        sample=0,
        start=start,
        end=end,
        author=author,
        versions=(PolicyVersion(0), PolicyVersion(0)),
        action=AssistantMessage(),
        text="",
        finish="stop",
        observation=(),
        reward=reward,
        reward_parts={"all": reward},
        label=Label.OK,
        first_error=False,
        steps_left=0,
        state_hash="",
    )


def make_guidance(rng: np.random.Generator, turn: int, tokens: np.ndarray, vocabulary: int, k: int) -> TurnGuidance:
    """A random teacher: each token itself and k - 1 other ids, with the mass that they leave in the tail."""
    ids = np.stack(
        [np.append(token, rng.permutation(np.delete(np.arange(vocabulary), token))[: k - 1]) for token in tokens]
    )
    logprobs = np.log(rng.dirichlet(np.ones(k + 1), len(tokens)))
    return TurnGuidance(
        turn,
        ids.astype(np.int32),
        logprobs[:, :k].astype(np.float32),
        logprobs[:, k].astype(np.float32),
        float(rng.random()),
    )


def without_guidance(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, guidance=[None] * len(trajectory.turns))


def make_job(path: str, **learner: Any) -> Job:
    """A job whose learner has these settings; `lora` and `dtype` go to the student."""
    student = {"path": path, **{key: learner.pop(key) for key in ("lora", "dtype") if key in learner}}
    return parse_job(
        {
            "name": "learner-test",
            "seed": 7,
            "environments": [{"id": "agentrl/FoodOrder-v0"}],
            "student": student,
            "teacher": {"scorer": {"type": "hf", "path": path}},
            "learner": {"micro_batch_tokens": 64, "schedule": {"warmup_steps": 0}, **learner},
        }
    )
