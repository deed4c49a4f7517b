"""An episode as bytes, and back: JSON, not pickle, so that a snapshot from the network can do no harm.

A snapshot goes back into an environment made like its own: what the constructor was told decides limits and rewards.

The order of keys is kept, for it may decide the wording of what follows (a basket is read back in the order in which it
was filled); the hash of a state (`DialogueEnv.state_hash`) does not see it.
"""

from __future__ import annotations

import dataclasses
import json
import marshal
from typing import TYPE_CHECKING, Any

from envs.calls import UNPRINTABLE, canonical_json
from envs.contract import Message, ParseStatus, ToolCall

if TYPE_CHECKING:
    from envs.base import DialogueEnv

#: attributes of a `DialogueEnv` that are kept as they are; level, random generator and messages are kept beside them
KEPT = (
    "task_index",
    "language",
    "split",
    "style",
    "turn",
    "success",
    "state",
    "_live",
    "_erred",
    "_calls",
    "_calls_mark",
)


def copy_tree(tree: Any) -> Any:
    """A deep copy of plain JSON values, ten times faster than `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(tree))  # noqa: S302  our own bytes of this moment


def pack(env: DialogueEnv) -> bytes:
    """The episode of `env`.  Raises TypeError where a state is no plain JSON."""
    kept = {name: getattr(env, name) for name in KEPT}
    kept["made"] = _made(env)
    kept["level"] = env.level.index
    kept["random"] = env.np_random.bit_generator.state
    kept["messages"] = [_message_to_json(message) for message in env.messages]
    return json.dumps(kept).encode("ascii")


def unpack(env: DialogueEnv, snapshot: bytes) -> int:
    """Puts the attributes of a packed episode back into `env` and returns its level, which the caller has to enter.

    Raises ValueError where the episode is one of an environment made differently.
    """
    kept = json.loads(snapshot)
    for name, value in _made(env).items():
        if kept["made"][name] != value:
            raise ValueError(
                f"restore: the snapshot is of an environment with {name}={kept['made'][name]!r}, not {value!r}: "
                "make one like it"
            )
    for name in KEPT:
        setattr(env, name, kept[name])
    env.np_random.bit_generator.state = kept["random"]
    env.messages = [_message_from_json(message) for message in kept["messages"]]
    return kept["level"]


def _made(env: DialogueEnv) -> dict[str, Any]:
    """What an environment is and was told when it was made, as far as an episode depends on it."""
    told = {"compact_tools": env.compact_tools, "max_turns": env.max_turns, **dataclasses.asdict(env.rewards)}
    return {"class": type(env).__name__, **told}


def _message_to_json(message: Message) -> list[Any]:
    calls = [
        [c.name, None if c.arguments is None else _printable(c.arguments), str(c.status), c.raw]
        for c in message.tool_calls
    ]
    return [message.role, message.content, calls, message.name]


def _printable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, or none where JSON cannot print them."""
    return {} if canonical_json(arguments) == UNPRINTABLE else arguments


def _message_from_json(parts: list[Any]) -> Message:
    role, content, calls, name = parts
    return Message(role, content, tuple(ToolCall(n, a, ParseStatus(s), r) for n, a, s, r in calls), name)
