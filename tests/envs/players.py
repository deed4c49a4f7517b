"""Who plays in the tests of the environments: the expert, a random policy, and one who spells oddly."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from envs.base import DialogueEnv
from envs.contract import AssistantMessage, ToolCall, call, say

#: things to say to the user of a food order, for a random policy
ORDER_TALK = (
    "where to?", "when?", "anything else?", "hello", "bye", "sorry, we cannot do that.", "your order is placed.",
    "2 miso-ramen; oak street; total 18. ok?", "sorry, no miso-ramen.", "we have corn-soup, onion-soup.", "",
)  # fmt: skip
WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})


def play_expert(env: DialogueEnv, turns: int = 1000) -> tuple[bool, int]:
    """Plays the expert for some turns; whether the episode succeeded, and how many turns it took."""
    for turn in range(1, turns + 1):
        _, _, terminated, truncated, info = env.step(env.oracle().action)
        if terminated or truncated:
            return info["success"], turn
    return False, turns


def until(env: DialogueEnv, reached: Callable[[dict[str, Any]], Any]) -> None:
    """Plays the expert until the state is as asked for."""
    while not reached(env.state):
        env.step(env.oracle().action)


def random_action(env: DialogueEnv, rng: random.Random, phrases: tuple[str, ...]) -> AssistantMessage:
    """A call of a random tool with words of the dialogue as arguments, or a random phrase."""
    if rng.random() < 0.4:
        return say(rng.choice(phrases))
    tool = env.tools[rng.choice(sorted(env.tools))]
    words = env.messages[rng.randrange(len(env.messages))].content.replace("。", " ").split() or ["x"]
    arguments: dict[str, Any] = {}
    for name, schema in tool.parameters["properties"].items():
        if name not in tool.parameters.get("required", ()) and rng.random() < 0.5:
            continue
        if "enum" in schema:
            arguments[name] = rng.choice(schema["enum"])
        elif schema.get("type") in ("integer", "number"):
            arguments[name] = rng.randint(1, 5)
        else:
            first = rng.randrange(len(words))
            arguments[name] = " ".join(words[first : first + rng.randint(1, 2)]).strip(".,?")
    return call(tool.name, **arguments)


def oddly_spelt(action: AssistantMessage, rng: random.Random, words: dict[str, str]) -> AssistantMessage:
    """The same calls with some values in another case, width, spacing, type or language (by `words`)."""
    calls = tuple(
        ToolCall(one.name, {key: _odd(value, rng, words) for key, value in (one.arguments or {}).items()}, one.status)
        for one in action.tool_calls
    )
    return AssistantMessage(action.content, calls)


def _odd(value: Any, rng: random.Random, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        spaced = (f" {value}\n", value.replace(" ", "  "), value.replace(" ", "\n"))
        return rng.choice((value, value.upper(), value.translate(WIDE), words.get(value, value), *spaced))
    return rng.choice((value, float(value), str(value), bool(value)))


def transcript(env: DialogueEnv, seed: int, level: int) -> str:
    """A dialogue half played by the expert and half at random, as text."""
    env.reset(seed=seed, options={"level": level})
    rng, lines = random.Random(seed), []
    while True:
        expert = env.oracle()
        action = expert.action if rng.random() < 0.5 else random_action(env, rng, ("hello?", "sorry"))
        answers, reward, terminated, truncated, info = env.step(action)
        lines.append(f"{sorted(expert.acceptable)} {answers} {reward!r} {info} {env.state_hash()}")
        if terminated or truncated:
            return "\n".join(lines)
