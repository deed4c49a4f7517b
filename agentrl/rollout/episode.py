"""The coroutine that plays one episode: the environment speaks, the student answers, token in, token out.

    opening -> { inject or generate -> parse -> step -> bridge } -> trajectory

Every token of the record says which turn it was written in, whether the student sampled it and with what
log-probability.
The last sample ends with the last observation, so that the state after the last step is there to bootstrap from.
It knows neither Ray nor vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from agentrl.rollout.chat import ChatRenderer
from agentrl.rollout.engine import Engine, Generated, Sampling
from agentrl.rollout.env_actor import EnvOpening, EnvStep, Operation
from agentrl.rollout.env_client import EnvBroken
from agentrl.types import AssistantMessage, EpisodeSpec, Label, Message, Sample, Trajectory, Turn, derive_seed

T = TypeVar("T")


class Environments(Protocol):
    async def call(self, key: str, operation: Operation, payload: object = None) -> object: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """In tokens: of one turn, and of prompt and turn together."""

    max_turn_tokens: int
    max_model_len: int


def episode_key(spec: EpisodeSpec) -> str:
    """Names one attempt at one episode, so that late answers for an earlier attempt go nowhere."""
    return f"{spec.episode_id}#{spec.attempt}"


async def play_episode(
    spec: EpisodeSpec, engine: Engine, chat: ChatRenderer, envs: Environments, limits: Limits, waits_for: list[str]
) -> Trajectory:
    """Play `spec` and return its record.

    An environment that breaks ends the episode with `failure` set.  The episode is truncated, not terminated, when
    it meets the environment's own turn limit, `spec.max_turns`, `spec.max_turns_after_error` or the context length.
    EngineError and EnvLost rise to the caller.
    `waits_for[0]` always says what the episode is waiting for, for the message of whoever loses patience.
    """
    started = time.monotonic()
    player = _Player(spec, engine, chat, envs, limits, waits_for)
    try:
        await player.play()
    except EnvBroken as error:
        player.record.failure = str(error)
    player.record.samples = [draft.finish() for draft in player.drafts]
    player.record.wall_s = time.monotonic() - started
    return player.record


def empty_trajectory(spec: EpisodeSpec, failure: str | None = None) -> Trajectory:
    """The record of an episode of which nothing is known but its spec and why it failed."""
    return Trajectory(
        spec=spec,
        opening=(),
        tools=[],
        samples=[],
        turns=[],
        terminated=False,
        truncated=False,
        success=False,
        signature="",
        oracle_turns=0,
        wall_s=0.0,
        failure=failure,
    )


@dataclass(slots=True)
class _Draft:
    """A sample that still grows."""

    token_ids: list[int] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)

    def template(self, ids: Sequence[int]) -> None:
        """Prompt, observation, separators: belong to no turn."""
        self._grow(ids, -1, [float("nan")] * len(ids), False)

    def sampled(self, ids: Sequence[int], turn: int, logprobs: Sequence[float]) -> None:
        self._grow(ids, turn, logprobs, True)

    def given(self, ids: Sequence[int], turn: int) -> None:
        """A turn that somebody else than the student wrote."""
        self._grow(ids, turn, [float("nan")] * len(ids), False)

    def finish(self) -> Sample:
        return Sample(
            np.asarray(self.token_ids, np.int32),
            np.asarray(self.turn_ids, np.int16),
            np.asarray(self.logprobs, np.float32),
            np.asarray(self.trainable, np.bool_),
        )

    def _grow(self, ids: Sequence[int], turn: int, logprobs: Sequence[float], trainable: bool) -> None:
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} tokens with {len(logprobs)} logprobs")
        self.token_ids += ids
        self.turn_ids += [turn] * len(ids)
        self.logprobs += logprobs
        self.trainable += [trainable] * len(ids)


class _Player:
    def __init__(
        self,
        spec: EpisodeSpec,
        engine: Engine,
        chat: ChatRenderer,
        envs: Environments,
        limits: Limits,
        waits_for: list[str],
    ) -> None:
        self.spec, self.engine, self.chat, self.envs, self.limits = spec, engine, chat, envs, limits
        self.waits_for = waits_for
        self.record = empty_trajectory(spec)
        self.drafts = [_Draft()]
        self.history: list[Message] = []
        self.turn_start = 0

    async def play(self) -> None:
        opening = await self._ask("reset", self.spec, EnvOpening)
        record = self.record
        record.opening, record.tools = opening.messages, opening.tools
        record.signature, record.oracle_turns = opening.signature, opening.oracle_turns
        self.history = list(opening.messages)
        self.drafts[0].template(self.chat.render_opening(opening.messages, opening.tools))
        if len(self.drafts[0].token_ids) >= self.limits.max_model_len:
            record.failure = (
                f"the opening has {len(self.drafts[0].token_ids)} tokens, which leaves no room for an answer in "
                f"student.max_model_len ({self.limits.max_model_len}): raise it"
            )
            return
        state_hash = opening.state_hash
        while not (record.terminated or record.truncated):
            index = len(record.turns)
            action, generated = await self._act(index)
            step = await self._ask("step", action, EnvStep)
            self._record_turn(action, generated, step, state_hash)
            state_hash = step.state_hash
            record.terminated, record.truncated = step.terminated, step.truncated
            record.success = step.success and step.terminated
            self._observe(action, step)
            if not record.terminated and len(self.drafts[-1].token_ids) >= self.limits.max_model_len:
                record.truncated = True
            if not record.terminated and self._is_cut():
                record.truncated = True

    def _is_cut(self) -> bool:
        """Whether the plan, not the environment, ends the episode here."""
        spec, turns = self.spec, self.record.turns
        if spec.max_turns is not None and len(turns) >= spec.max_turns:
            return True
        # An error that was forced upon the student is no error of its own, but takes the environment's `first_error`.
        own = (turn for turn in turns if turn.author == "student")
        wrong = next((turn.index for turn in own if turn.first_error or turn.label is not Label.OK), None)
        if spec.max_turns_after_error is None or wrong is None:
            return False
        return len(turns) - 1 - wrong >= spec.max_turns_after_error

    async def _act(self, index: int) -> tuple[AssistantMessage, Generated | None]:
        """The next turn, written into the sample: sampled by the student, or an injected mistake (None)."""
        draft, inject = self.drafts[-1], self.spec.inject
        self.turn_start = len(draft.token_ids)
        room = self.limits.max_model_len - self.turn_start
        if inject is not None and inject.turn == index:
            payload = (inject.error, derive_seed(self.spec.seed, "inject", index))
            action = await self._ask("inject", payload, AssistantMessage)
            ids = self.chat.render_assistant(action)
            if len(ids) > room:
                raise EnvBroken(f"the injected turn has {len(ids)} tokens and the context has room for {room}")
            draft.given(ids, index)
            return action, None
        sampling = Sampling(
            self.spec.temperature, min(self.limits.max_turn_tokens, room), derive_seed(self.spec.seed, "sample", index)
        )
        self.waits_for[0] = f"the engine to generate turn {index}"
        generated = await self.engine.generate(draft.token_ids, sampling)
        action = self.chat.parse(generated.token_ids, draft.token_ids)
        draft.sampled(generated.token_ids, index, generated.logprobs)
        return action, generated

    def _record_turn(
        self, action: AssistantMessage, generated: Generated | None, step: EnvStep, state_hash: str
    ) -> None:
        draft, index = self.drafts[-1], len(self.record.turns)
        start, end = self.turn_start, len(draft.token_ids)
        here = self.engine.version
        self.record.turns.append(
            Turn(
                index=index,
                sample=len(self.drafts) - 1,
                start=start,
                end=end,
                author="injected" if generated is None else "student",
                versions=(here, here) if generated is None else (generated.version_first, generated.version_last),
                action=action,
                text=self.chat.text(draft.token_ids[start:end]),
                finish="length" if action.truncated else "stop",
                observation=step.messages,
                reward=step.reward,
                reward_parts=step.reward_parts,
                label=step.label,
                first_error=step.first_error,
                steps_left=step.steps_left,
                state_hash=state_hash,
            )
        )

    def _observe(self, action: AssistantMessage, step: EnvStep) -> None:
        """Append the observation's tokens, or start a new sample where the template rewrites history."""
        turn = self.record.turns[-1]
        draft = self.drafts[-1]
        self.history += [Message("assistant", action.content, action.tool_calls), *step.messages]
        if step.terminated and not step.messages:
            return
        prompt = self.chat.extend(
            draft.token_ids[: turn.start], draft.token_ids[turn.start :], step.messages, self.record.tools
        )
        if prompt is not None:
            bridge = prompt[len(draft.token_ids) :]
        else:
            draft, bridge = _Draft(), self.chat.render_opening(self.history, self.record.tools)
            self.drafts.append(draft)
        # A very long tool result may overflow the context: the record ends where the model's sight does.
        draft.template(bridge[: self.limits.max_model_len - len(draft.token_ids)])

    async def _ask(self, operation: Operation, payload: object, kind: type[T]) -> T:
        self.waits_for[0] = f"its environment to {operation}"
        answer = await self.envs.call(episode_key(self.spec), operation, payload)
        if not isinstance(answer, kind):
            raise EnvBroken(f"environment, {operation}: got {type(answer).__name__}, not {kind.__name__}")
        return answer
