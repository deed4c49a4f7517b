"""The contract between an environment and whoever plays it.  Read this first.

An environment is a `gymnasium.Env` whose *action* is one assistant message and whose *observation* is the tuple of
messages that followed it.  Beside gymnasium's own methods it answers six questions that training needs: what would an
expert do here (`oracle`), was that turn good (`label`), is this the same state (`state_hash`), take me back
(`snapshot`/`restore`), how hard can it get (`levels`), and what if something goes wrong (`inject`).

This package knows nothing of agentrl, ray or torch: any tool that speaks gymnasium can play it.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import gymnasium

Role = Literal["system", "user", "assistant", "tool"]


class ParseStatus(StrEnum):
    """How the text of a tool call parsed.  Everything but OK is answered by the environment with a stated error."""

    OK = "ok"
    INVALID_JSON = "invalid_json"
    UNCLOSED_BLOCK = "unclosed_block"
    MISSING_NAME = "missing_name"
    MALFORMED_STRUCTURE = "malformed_structure"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the assistant wrote it.

    `arguments` is None exactly when `status` is not OK; never change it in place.  `raw` is what was written.
    """

    name: str
    arguments: dict[str, Any] | None
    status: ParseStatus = ParseStatus.OK
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue.  Tool results have role "tool" and the `name` of the tool that answered."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """The action: what the assistant said in one turn, already parsed by whoever generated it.

    `content` is the text beside the tool calls, without any reasoning block.  `truncated` says that generation ran into
    its length limit.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    truncated: bool = False


def call(name: str, /, **arguments: Any) -> AssistantMessage:
    """The assistant message that makes one well-formed tool call and says nothing."""
    return AssistantMessage(tool_calls=(ToolCall(name, arguments),))


def say(content: str) -> AssistantMessage:
    """The assistant message that speaks to the user and calls nothing."""
    return AssistantMessage(content=content)


class Label(StrEnum):
    """What was wrong with a turn; where several fit, the first in this order is given."""

    ENV_ERROR = "env_error"
    TRUNCATED = "truncated"
    INVALID_JSON = "malformed.invalid_json"
    UNCLOSED_BLOCK = "malformed.unclosed_block"
    MISSING_NAME = "malformed.missing_name"
    MALFORMED_STRUCTURE = "malformed.malformed_structure"
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_TOOL = "wrong_tool"
    ARGS_MISSING = "bad_args.missing"
    ARGS_EXTRA = "bad_args.extra"
    ARGS_TYPE = "bad_args.type"
    ARGS_ENUM = "bad_args.enum"
    HALLUCINATED_ARG = "hallucinated_arg"
    WRONG_VALUE = "wrong_value"
    MISSING_INFO = "missing_info"
    POLICY_VIOLATION = "policy_violation"
    REPEATED_CALL = "repeated_call"
    REDUNDANT_ASK = "redundant_ask"
    PREMATURE_STOP = "premature_stop"
    NO_STOP = "no_stop"
    REASONING_ERROR = "reasoning_error"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Level:
    """One rung of the difficulty ladder.  `index` counts from 1; `max_turns` ends an episode as truncated."""

    index: int
    name: str
    max_turns: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advice:
    """What an expert would do in the present state.

    action:      one right assistant message.
    acceptable:  canonical forms (see `canonical`) of every action that is as good.
    steps_left:  assistant turns until success if the expert plays on; the potential of the shaping reward.
    """

    action: AssistantMessage
    acceptable: frozenset[str]
    steps_left: int


class MessageSpace(gymnasium.Space):
    """Sequences of messages.  gymnasium's own `Text` refuses spaces, JSON and Chinese."""

    def __init__(self, roles: tuple[Role, ...] = ("system", "user", "tool"), seed: int | None = None) -> None:
        self.roles = roles
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[Message, ...]:
        role = self.roles[int(self.np_random.integers(len(self.roles)))]
        return (Message(role, f"message {int(self.np_random.integers(1_000_000))}"),)

    def contains(self, x: Any) -> bool:
        return isinstance(x, tuple) and all(isinstance(m, Message) and m.role in self.roles for m in x)


class ActionSpace(gymnasium.Space):
    """One assistant message.  `sample` says a random word or calls a random tool of `tool_names` without arguments."""

    def __init__(self, tool_names: tuple[str, ...] = (), seed: int | None = None) -> None:
        self.tool_names = tool_names
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> AssistantMessage:
        if self.tool_names and self.np_random.random() < 0.5:
            return call(self.tool_names[int(self.np_random.integers(len(self.tool_names)))])
        return say(f"word {int(self.np_random.integers(1_000_000))}")

    def contains(self, x: Any) -> bool:
        return isinstance(x, AssistantMessage)


class AgentEnv(gymnasium.Env[tuple[Message, ...], AssistantMessage]):
    """Override these.  `envs.base.DialogueEnv` implements the bookkeeping that both environments here share.

    `reset(seed=, options={"level": int, "task": int, "language": "en"|"zh", "split": "train"|"heldout"})` returns the
    system message and the first messages, and an info with
        tools (list of JSON schemas in OpenAI's function format), level (int), max_turns (int), task (int), language,
        split, signature (str: the task's meaning; equal signatures mean equal tasks).
    The task is a function of (level, task, split) alone; language changes its words only; without a `task` option one
    is drawn from `seed`.  A task belongs to the split that the hash of its signature says (one in five is held out), so
    that no held-out task can be met in training.

    `step(action)` returns (messages, reward, terminated, truncated, info) with
        reward_parts (dict[str, float], summing to the reward), label (Label), success (bool, meaningful at the end),
        steps_left (int, the oracle's, after the step), first_error (bool: this turn is the episode's first error).
    A failure inside the environment itself is an exception, never a reward.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
    #: names that `inject` accepts
    errors: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def levels(cls) -> tuple[Level, ...]:
        """The difficulty ladder, easiest first."""

    @abstractmethod
    def oracle(self) -> Advice:
        """Expert advice for the present state.  Never changes the state; never fails on a live episode."""

    @abstractmethod
    def label(self, action: AssistantMessage) -> Label:
        """What would be wrong with `action` in the present state.  Never changes the state."""

    @abstractmethod
    def inject(self, error: str, rng: random.Random) -> AssistantMessage:
        """A wrong assistant message for the present state whose error will be *stated*, by a tool or the user.

        The caller plays it with `step` as if the assistant had said it.  Raises ValueError for a name not in `errors`.
        """

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state of the episode, the random generator included."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Back to a state that `snapshot` returned; bit-equal from there on.

        Raises ValueError for a snapshot of an environment that was made with other arguments.
        """

    @abstractmethod
    def state_hash(self) -> str:
        """Equal for two states from which the same future is possible (the wording of the dialogue does not count)."""
