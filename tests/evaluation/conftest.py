"""Trajectories that say only what an evaluation reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrl.types import AssistantMessage, EpisodeSpec, Injection, Label, ToolCall, Trajectory, Turn

CALL = AssistantMessage(tool_calls=(ToolCall("add_item", {}),))
SAY = AssistantMessage(content="hello")


def _turn(index: int, kind: str) -> Turn:
    """`kind`: ok / bad (a call, rightly or wrongly made), say (no call), injected (a wrong call that was forced)."""
    return Turn(
        index=index,
        sample=0,
        start=0,
        end=0,
        author="injected" if kind == "injected" else "student",
        versions=(0, 0),
        action=SAY if kind == "say" else CALL,
        text="",
        finish="stop",
        observation=(),
        reward=0.0,
        reward_parts={},
        label={"ok": Label.OK, "say": Label.OK, "env": Label.ENV_ERROR}.get(kind, Label.WRONG_TOOL),
        first_error=False,
        steps_left=0,
        state_hash="",
    )


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    def make(
        kinds: str = "ok",
        success: bool = True,
        *,
        level: int = 1,
        inject: bool = False,
        failure: str | None = None,
        signature: str = "s",
        spec: EpisodeSpec | None = None,
    ) -> Trajectory:
        injection = Injection("wrong_dish", 1) if inject else None
        return Trajectory(
            spec=spec or EpisodeSpec("x", "A-v0", level, 0, 0, split="heldout", inject=injection),
            opening=(),
            tools=[],
            samples=[],
            turns=[_turn(i, kind) for i, kind in enumerate(kinds.split())],
            terminated=True,
            truncated=False,
            success=success,
            signature=signature,
            oracle_turns=4,
            wall_s=0.0,
            failure=failure,
        )

    return make
