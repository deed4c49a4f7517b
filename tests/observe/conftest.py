"""A small guided trajectory and a job, for tests of what a run leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.config import Job, parse_job
from agentrl.types import (
    AssistantMessage,
    EpisodeSpec,
    Label,
    Message,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
    TurnGuidance,
)


@pytest.fixture
def job(job_in: Callable[[Path], Job], tmp_path: Path) -> Job:
    return job_in(tmp_path)


@pytest.fixture(scope="session")
def job_in() -> Callable[[Path], Job]:
    """A job whose runs go into a folder."""
    return lambda folder: parse_job(
        {
            "name": "demo",
            "runs_dir": str(folder / "runs"),
            "environments": [{"id": "A-v0"}],
            "student": {"path": "s"},
            "teacher": {"scorer": {"type": "hf", "path": "t"}},
        }
    )


@pytest.fixture(scope="session")
def play() -> Callable[..., Trajectory]:
    """A dialogue of one call and one closing word: 2 prompt tokens, 3 sampled, 2 observed, 2 sampled."""

    def make(
        episode_id: str = "00000-000",
        *,
        level: int = 1,
        success: bool = True,
        guided: bool = True,
        say: str = "Here is your miso ramen.",
        failure: str | None = None,
    ) -> Trajectory:
        nan = np.nan
        sample = Sample(
            token_ids_T=np.array([1, 2, 10, 11, 3, 4, 5, 12, 3], dtype=np.int32),
            turn_ids_T=np.array([-1, -1, 0, 0, 0, -1, -1, 1, 1], dtype=np.int16),
            logprobs_T=np.array([nan, nan, -0.5, -0.25, -0.125, nan, nan, -1.0, -0.5], dtype=np.float32),
            trainable_T=np.array([0, 0, 1, 1, 1, 0, 0, 1, 1], dtype=bool),
        )
        call = AssistantMessage(tool_calls=(ToolCall("add_item", {"dish": "miso-ramen", "quantity": 2}, raw="{…}"),))
        first = Turn(
            index=0,
            sample=0,
            start=2,
            end=5,
            author="student",
            versions=(3, 3),
            action=call,
            text='<tool_call>{"name": "add_item"}</tool_call>',
            finish="stop",
            observation=(Message("tool", "ok", name="add_item"),),
            reward=0.1,
            reward_parts={"shaping": 0.105, "step": -0.005},
            label=Label.OK,
            first_error=False,
            steps_left=1,
            state_hash="a1",
        )
        second = Turn(
            index=1,
            sample=0,
            start=7,
            end=9,
            author="student",
            versions=(3, 4),
            action=AssistantMessage(content=say, reasoning="all is done"),
            text=say,
            finish="stop",
            observation=(),
            reward=1.0 if success else 0.0,
            reward_parts={"task": 1.0 if success else 0.0},
            label=Label.OK if success else Label.PREMATURE_STOP,
            first_error=not success,
            steps_left=0,
            state_hash="b2",
        )
        guidance = [
            TurnGuidance(
                turn=0,
                support_ids_nk=np.array([[10, 7], [11, 7], [7, 3]], dtype=np.int32),
                support_logprobs_nk=np.log(np.array([[0.5, 0.25], [0.5, 0.25], [0.25, 0.5]], dtype=np.float32)),
                tail_logprobs_n=np.log(np.full(3, 0.25, dtype=np.float32)),
                value=0.75,
            ),
            None,
        ]
        return Trajectory(
            spec=EpisodeSpec(episode_id, "A-v0", level, 17, 23),
            opening=(Message("system", "You take orders."), Message("user", "Two miso ramen, please. 谢谢")),
            tools=[{"type": "function", "function": {"name": "add_item", "parameters": {"type": "object"}}}],
            samples=[sample],
            turns=[first, second],
            terminated=True,
            truncated=False,
            success=success,
            signature="miso-ramen*2",
            oracle_turns=2,
            wall_s=0.5,
            failure=failure,
            guidance=guidance if guided else [],
        )

    return make
