"""Expert dialogues: an environment played by its own oracle, as token ids with the assistant's tokens marked.

With `mistakes` above 0 the expert is now and then replaced: by an injected wrong turn whose error is stated, or by what
an expert said at another moment of another dialogue, as a weak student does.  Such a turn is masked from the loss, and
what follows shows how to recover.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.config import Environment
from agentrl.rollout import env_actor
from agentrl.rollout.chat import ChatRenderer
from agentrl.rollout.tool_calls import format_calls
from envs.contract import AgentEnv, AssistantMessage


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue of T tokens and K turns of the expert.

    target_T: True where the token was written by the expert.  state_K: index of the last token of the state that a turn
    was taken in.  return_K: the reward still to come from there, discounted by gamma.
    """

    token_ids_T: NDArray[np.int64]
    target_T: NDArray[np.bool_]
    state_K: NDArray[np.int64]
    return_K: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Domain:
    """One environment in one language."""

    env: str
    language: Literal["en", "zh"]


class Blunders:
    """Things said at the wrong time: the latest turns of experts, to be said again elsewhere."""

    def __init__(self, share: float, size: int = 500) -> None:
        self.share = share
        self._turns: deque[AssistantMessage] = deque(maxlen=size)

    def hear(self, action: AssistantMessage) -> None:
        self._turns.append(action)

    def draw(self, rng: random.Random) -> AssistantMessage | None:
        return rng.choice(self._turns) if self._turns else None


def make_env(domain: Domain) -> AgentEnv:
    """The domain's environment, with the compact tool schemas that the demo's jobs use."""
    return env_actor.make_env(Environment(id=domain.env, language=domain.language))


def play_expert(
    env: AgentEnv,
    renderer: ChatRenderer,
    *,
    level: int,
    task: int,
    language: str,
    gamma: float = 1.0,
    mistakes: float = 0.0,
    blunders: Blunders | None = None,
    seed: int = 0,
) -> Dialogue:
    """Play one training task with the oracle.  Raises RuntimeError where it fails: a fault of the environment."""
    rng = random.Random(seed)
    messages, info = env.reset(
        seed=seed, options={"level": level, "task": task, "language": language, "split": "train"}
    )
    ids = list(renderer.render_opening(messages, info["tools"]))
    target = [False] * len(ids)
    states: list[int] = []
    rewards: list[float] = []
    expert_turns: list[int] = []
    done = False
    while not done:
        action, expert = env.oracle().action, True
        if rng.random() < mistakes:
            wrong = blunders.draw(rng) if blunders and blunders.share and rng.random() < blunders.share else None
            action, expert = wrong or env.inject(rng.choice(env.errors), rng), False
        elif blunders is not None:
            blunders.hear(action)
        if expert:
            states.append(len(ids) - 1)
            expert_turns.append(len(rewards))
        turn = renderer.render_assistant(action)
        ids += turn
        target += [expert] * len(turn)
        messages, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
        done = terminated or truncated
        bridge = renderer.bridge(messages)
        ids += bridge
        target += [False] * len(bridge)
    if not info["success"] and not mistakes:
        raise RuntimeError(f"the oracle failed on {env.spec} level {level} task {task} ({language})")
    to_go = np.zeros(len(rewards) + 1, dtype=np.float64)
    for k in reversed(range(len(rewards))):
        to_go[k] = rewards[k] + gamma * to_go[k + 1]
    return Dialogue(
        np.asarray(ids, dtype=np.int64),
        np.asarray(target, dtype=np.bool_),
        np.asarray(states, dtype=np.int64),
        to_go[expert_turns].astype(np.float32),
    )


def expert_texts(domains: list[Domain], per_level: int, mistakes: float = 0.1) -> Iterator[str]:
    """What the tokenizer is trained on: every message of expert dialogues of every level, one string each."""
    for domain in domains:
        env = make_env(domain)
        for level in env.levels():
            for task in range(per_level):
                rng = random.Random(task)
                options = {"level": level.index, "task": task, "language": domain.language, "split": "train"}
                messages, _ = env.reset(seed=task, options=options)
                done = False
                while not done:
                    yield from (m.content for m in messages)
                    wrong = rng.random() < mistakes
                    action = env.inject(rng.choice(env.errors), rng) if wrong else env.oracle().action
                    yield assistant_text(action)
                    messages, _, terminated, truncated, _ = env.step(action)
                    done = terminated or truncated
                yield from (m.content for m in messages)


def assistant_text(action: AssistantMessage) -> str:
    return action.content + format_calls(action.tool_calls)
