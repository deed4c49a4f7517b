"""`FoodOrderEnv`: the assistant takes a food order from a user who tells it bit by bit, and places it.

Success: the placed order equals the user's goal as it stands at the end, and every fact that was asked for has been
told; where nothing that was wanted is in stock, success is to have said so.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from envs.base import DialogueEnv
from envs.calls import Language, Tool, canonical_json
from envs.contract import AssistantMessage, Label, Level, Message, ParseStatus, ToolCall, call, say
from envs.food_order import tasks, texts
from envs.food_order.expert import Expert
from envs.food_order.judge import Judge
from envs.food_order.tools import Kitchen, compact_line, tools_for
from envs.food_order.user import User, first_state
from envs.food_order.words import meant_as, normal, shown

SYSTEM: dict[Language, dict[str, str]] = {
    "en": {"role": "take a food order.", "ask": "ask: {x}.", "tools": "tools: {x}"},
    "zh": {"role": "请为用户点餐。", "ask": "要问：{x}。", "tools": "工具：{x}"},
}


class FoodOrderEnv(DialogueEnv):
    """See the module, and `DialogueEnv` for the constructor's arguments."""

    errors = (
        "unknown_dish",
        "place_before_quote",
        "missing_argument",
        "wrong_item_stated",
        "absent_item",
        "unknown_tool",
        "wrong_type",
        "invalid_json",
    )
    reachable_labels: ClassVar[frozenset[Label]] = frozenset(Label) - {Label.ENV_ERROR, Label.REASONING_ERROR}
    wording_keys: ClassVar[frozenset[str]] = frozenset({"spoken"})

    @classmethod
    def levels(cls) -> tuple[Level, ...]:
        return tasks.LEVELS

    @classmethod
    def tools_for(cls, level: Level, language: Language) -> dict[str, Tool]:
        return tools_for(level, language)

    @classmethod
    def make_task(cls, level: Level, rng: random.Random) -> dict[str, Any]:
        return tasks.make_task(level, rng)

    def system_text(self) -> str:
        words, settings = SYSTEM[self.language], self.level.settings
        asked = ", ".join(shown(slot, self.language) for slot in (*settings["options"], *settings["slots"]))
        parts = [words["role"], words["ask"].format(x=asked)]
        if self.compact_tools:
            parts.append(words["tools"].format(x=compact_line(self.tools)))
        return " ".join(parts)

    def begin(self) -> list[Message]:
        self.state = first_state(self.task, self.level.settings)
        return [Message("user", self._user().start())]

    def _user(self) -> User:
        return User(self.state, self.task, self.level.settings, self.language, self.style)

    def hear(self, text: str) -> list[Message]:
        return [Message("user", self._user().hear(text))]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        return Kitchen(self.state, self.task, self.level.settings, self.language).run(name, arguments)

    def after_calls(self) -> list[Message]:
        if self.state["placed"] and not self.finished:
            return [Message("user", self._user().saw_placed())]
        return []

    def advise(self) -> tuple[AssistantMessage, list[AssistantMessage]]:
        return Expert(self.state, self.level.settings, self.language).advise()

    def judge(self, action: AssistantMessage, tool_call: ToolCall | None) -> Label:
        judge = Judge(self.state, self.level.settings, self.language)
        if tool_call is None:
            return judge.said(texts.understand(action.content, self.language))
        return judge.called(tool_call.name, tool_call.arguments or {})

    def meaning(self, text: str) -> str:
        return texts.understand(text, self.language).key

    def canonical_argument(self, name: str, key: str, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, str):
            return value
        kind = "coupon" if key == "code" else key
        if kind in ("dish", "coupon", *tasks.SLOT_VALUES, *tasks.OPTION_VALUES):
            return meant_as(value, kind) or normal(value)
        return normal(value) if key == "query" else value

    def inject(self, error: str, rng: random.Random) -> AssistantMessage:
        """See `AgentEnv`.  Meant for early states: once the order is quoted, some errors would be no errors."""
        basket = set(self.state["basket"])
        absent = [dish for dish in tasks.DISHES if dish not in basket]
        dish = shown(rng.choice(absent), self.language)
        quantity = rng.randint(1, 3)
        options = {
            name: shown(rng.choice(tasks.OPTION_VALUES[name]), self.language) for name in self.level.settings["options"]
        }
        if error == "unknown_dish":
            unknown = shown(rng.choice(tasks.NOT_ON_MENU), self.language)
            return call("add_item", dish=unknown, quantity=quantity, **options)
        if error == "place_before_quote":
            return call("place_order")
        if error == "missing_argument":
            return call("add_item", quantity=quantity, **options)
        if error == "wrong_item_stated":
            return say(self._wrong_summary(rng))
        if error == "absent_item":
            return call("update_item", dish=dish, quantity=quantity)
        if error == "unknown_tool":
            return call(rng.choice(("order_food", "finish", "add_dish")))
        if error == "wrong_type":
            return call("add_item", dish=dish, quantity=rng.choice(("two", "many")), **options)
        if error == "invalid_json":
            raw = '{"name": "add_item", "arguments": {"dish": ' + canonical_json(dish)
            return AssistantMessage(tool_calls=(ToolCall("add_item", None, ParseStatus.INVALID_JSON, raw),))
        raise ValueError(f"inject: unknown error {error!r}; known are {self.errors}")

    def _wrong_summary(self, rng: random.Random) -> str:
        """A summary with a dish that the user has not asked for."""
        named = {item["dish"] for item in (*self.state["goal"], *self.state["want"])}
        dish = rng.choice([dish for dish in tasks.DISHES if dish not in named])
        item: dict[str, Any] = {"dish": dish, "quantity": rng.randint(1, 3)}
        for option in self.level.settings["options"]:
            item[option] = rng.choice(tasks.OPTION_VALUES[option])
        slots = list(self.state["delivery"].values())
        quote = texts.quote_text([item], slots, tasks.price_of(item), self.language)
        return texts.ANSWER[self.language]["confirm"].format(quote=quote)
