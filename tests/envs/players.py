"""Who plays in the tests of the environments: the expert, a random policy, and one who spells oddly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.base import DialogueEnv
from envs.calls import Language
from envs.contract import AssistantMessage, ToolCall, call, say
from envs.food_order.words import ZH
from envs.splits import LANGUAGES

WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})


@dataclass(frozen=True, slots=True)
class Talk:
    """What a random policy can say: phrases, and words for arguments, each with its like in the other language."""

    phrases: dict[Language, tuple[str, ...]]
    other_words: dict[str, str]


def both_ways(chinese: dict[str, str]) -> dict[str, str]:
    """From the Chinese of English words, the words of both languages with their like in the other."""
    return chinese | {word: english for english, word in chinese.items()}


HELLO = Talk({"en": ("hello?", "sorry"), "zh": ("您好？", "抱歉")}, {})
#: for the user of a food order
ORDER_TALK = Talk(
    {
        "en": (
            "where to?", "when?", "anything else?", "hello", "bye", "sorry, we cannot do that.",
            "your order is placed.", "2 miso-ramen; oak street; total 18. ok?", "sorry, no miso-ramen.",
            "we have corn-soup, onion-soup.", "",
        ),
        "zh": (
            "送到哪里？", "什么时候送？", "还要别的吗？", "您好", "再见", "抱歉，我们做不到。",
            "已下单。", "2份味噌拉面; 橡树街; 共18。对吗？", "抱歉，没有味噌拉面。",
            "我们有玉米汤, 洋葱汤。", "",
        ),
    },
    both_ways(ZH),
)  # fmt: skip


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


def random_action(env: DialogueEnv, rng: random.Random, talk: Talk) -> AssistantMessage:
    """A call of a random tool with words of the dialogue as arguments, or a random phrase."""
    if rng.random() < 0.4:
        return say(rng.choice(talk.phrases[env.language]))
    tool = env.tools[rng.choice(sorted(env.tools))]
    heard = env.messages[rng.randrange(len(env.messages))].content
    words = heard.split() if env.language == "en" else [word for word in talk.other_words if word in heard]
    words = words or ["x"]
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


def oddly_spelt(action: AssistantMessage, rng: random.Random, talk: Talk) -> AssistantMessage:
    """The same calls with some values in another case, width, spacing, type or language."""
    calls = tuple(
        ToolCall(one.name, {key: _odd(value, rng, talk) for key, value in (one.arguments or {}).items()}, one.status)
        for one in action.tool_calls
    )
    return AssistantMessage(action.content, calls)


def _odd(value: Any, rng: random.Random, talk: Talk) -> Any:
    if isinstance(value, str):
        spaced = (f" {value}\n", value.replace(" ", "  "), value.replace(" ", "\n"))
        return rng.choice((value, value.upper(), value.translate(WIDE), talk.other_words.get(value, value), *spaced))
    return rng.choice((value, float(value), str(value), bool(value)))


def transcripts(env_class: type[DialogueEnv]) -> str:
    """A dialogue of every level and language, half played by the expert and half at random, as text."""
    dialogues = [
        _transcript(env_class(level=level.index, language=language))
        for level in env_class.levels()
        for language in LANGUAGES
    ]
    return "\n\n".join(dialogues)


def _transcript(env: DialogueEnv) -> str:
    env.reset(seed=0)
    rng, lines = random.Random(0), []
    while True:
        expert = env.oracle()
        action = expert.action if rng.random() < 0.5 else random_action(env, rng, HELLO)
        answers, reward, terminated, truncated, info = env.step(action)
        lines.append(f"{sorted(expert.acceptable)} {answers} {reward!r} {info} {env.state_hash()}")
        if terminated or truncated:
            return "\n".join(lines)
