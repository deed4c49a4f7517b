"""The expert's plan: its turns from the present state to the end, found by playing them on a copy of the state.

Nothing is drawn at random after `reset`, so the plan is exact and its length is the steps left.  Finding it costs as
much as playing the rest of the episode; therefore it is found once and kept for as long as the agent does what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envs.contract import Advice, AssistantMessage

if TYPE_CHECKING:
    from envs.base import DialogueEnv

PLAN_LIMIT = 400  # an expert that needs more turns than this is a defect of the environment


class PlannedTurn(NamedTuple):
    """A turn that the expert would take: its canonical form, the action, and others that are as good."""

    key: str
    action: AssistantMessage
    others: list[AssistantMessage]


class Plan:
    """The plan of one environment.  Whoever changes the state says so: `move_on` after a turn, `forget` otherwise."""

    def __init__(self, env: DialogueEnv) -> None:
        self._env = env
        self._turns: list[PlannedTurn] | None = None  # the last one first, so that the next is popped

    def forget(self) -> None:
        """The state is another one: the plan will be found anew when it is next asked for."""
        self._turns = None

    def steps_left(self) -> int:
        """The expert's turns from here to the end; 0 when the dialogue has ended."""
        return len(self._found() if self._turns is None else self._turns)

    def move_on(self, key: str) -> None:
        """A turn with this canonical form has been played: the rest of the plan holds if the plan said so."""
        turns = self._found()
        if self._env.finished:
            self._turns = []
        elif turns and turns[-1].key == key:
            turns.pop()
        else:
            self._turns = None

    def key_of(self, action: AssistantMessage) -> str | None:
        """The canonical form of `action` if it is the very object that the plan holds next; else None, unread."""
        turns = self._found()
        return turns[-1].key if turns and turns[-1].action is action else None

    def advice(self) -> Advice:
        """The next turn of the plan.  There is one in every live episode."""
        turns = self._found()
        turn = turns[-1]
        acceptable = frozenset((turn.key, *map(self._env.canonical, turn.others)))
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
            turns.append(PlannedTurn(env.canonical(action), action, others))
            if len(turns) > PLAN_LIMIT:
                keys = [turn.key for turn in turns[-3:]]
                raise RuntimeError(f"the expert does not come to an end on {env.task['signature']}: {keys}")
            env.play(action, noted=False)
    return turns
