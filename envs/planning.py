"""The expert's plan: its turns from the present state to the end, found by playing them on a copy of the state.

Nothing is drawn at random after `reset`, so the plan is exact and its length is the steps left.  Finding it costs as
much as playing the rest of the episode; therefore it is found once and kept for as long as the state is one on its way.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, NamedTuple

from envs.contract import Advice, AssistantMessage

if TYPE_CHECKING:
    from envs.base import DialogueEnv

PLAN_LIMIT = 400  # an expert that needs more turns than this is a defect of the environment


class PlannedTurn(NamedTuple):
    """A turn that the expert would take: the state it is taken in, the action, and others that are as good."""

    state: bytes
    action: AssistantMessage
    others: list[AssistantMessage]


class Plan:
    """The plan of one environment.  Whoever changes the state says so: `move_on` after a turn, `forget` otherwise.

    A plan holds in the states that it leads through, whatever was said or called to reach them.
    """

    def __init__(self, env: DialogueEnv) -> None:
        self._env = env
        self._turns: list[PlannedTurn] | None = None  # the last one first, so that the next is popped

    def forget(self) -> None:
        """The state is another one: the plan will be found anew when it is next asked for."""
        self._turns = None

    def steps_left(self) -> int:
        """The expert's turns from here to the end; 0 when the dialogue has ended."""
        return len(self._found() if self._turns is None else self._turns)

    def move_on(self) -> None:
        """A turn has been played: the plan goes on from where the state is on its way, and is forgotten elsewhere."""
        turns, state = self._found(), _frozen(self._env.state)
        while turns and turns[-1].state != state:
            turns.pop()
        self._turns = turns if turns or self._env.finished else None

    def advice(self) -> Advice:
        """The next turn of the plan.  There is one in every live episode."""
        turns = self._found()
        turn = turns[-1]
        acceptable = frozenset(map(self._env.canonical, (turn.action, *turn.others)))
        return Advice(turn.action, acceptable, len(turns))

    def _found(self) -> list[PlannedTurn]:
        if self._turns is None:
            self._turns = _play_expert(self._env)[::-1]
        return self._turns


def _play_expert(env: DialogueEnv) -> list[PlannedTurn]:
    turns: list[PlannedTurn] = []
    with env.rehearsal():
        while not env.finished:
            action, others = env.advise()
            turns.append(PlannedTurn(_frozen(env.state), action, others))
            if len(turns) > PLAN_LIMIT:
                keys = [env.canonical(turn.action) for turn in turns[-3:]]
                raise RuntimeError(f"the expert does not come to an end on {env.task['signature']}: {keys}")
            env.play(action, noted=False)
    return turns


def _frozen(state: dict[str, Any]) -> bytes:
    """The state as bytes, the order of its keys included; marshal's newer versions mark shared strings as well."""
    return marshal.dumps(state, 2)
