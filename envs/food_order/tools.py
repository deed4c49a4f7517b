"""The tools of the restaurant: what they take, and what they do to an episode's state.

Every refusal is stated (`ToolError`) and names what is wrong.  Any change of the order takes back the quote and the
user's consent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.calls import Language, Tool, ToolError, echo
from envs.contract import Level
from envs.food_order.tasks import DISHES, DISTRACTORS, FACTS, MENU, OPTION_VALUES, total_of
from envs.food_order.texts import fact_shown, item_text, quote_text
from envs.food_order.words import meant_as, normal, shown, spelt

MAX_QUANTITY = 99

RESULT: dict[Language, dict[str, str]] = {
    "en": {
        "ok": "ok: {x}", "removed": "ok: no {x}", "placed": "ok: order placed", "empty": "nothing found",
        "nothing": "ok: nothing to do here",
        "unknown_dish": "error: unknown dish {x}", "sold_out": "error: {x} is out of stock",
        "twice": "error: {x} is in the order, use update_item", "absent": "error: {x} is not in the order",
        "unknown_value": "error: unknown {k} {x}", "coupon": "error: unknown coupon {x}",
        "no_items": "error: the order is empty", "no_slot": "error: {x} is missing",
        "no_quote": "error: nothing quoted yet", "unconfirmed": "error: the user has not confirmed",
        "done": "error: the order is placed already",
    },
    "zh": {
        "ok": "好：{x}", "removed": "好：不要{x}", "placed": "好：已下单", "empty": "没有找到",
        "nothing": "好：这里没有要做的",
        "unknown_dish": "错误：没有这道菜{x}", "sold_out": "错误：{x}缺货",
        "twice": "错误：{x}已在订单里，请用 update_item",
        "absent": "错误：{x}不在订单里", "unknown_value": "错误：未知的{k}{x}", "coupon": "错误：未知的优惠券{x}",
        "no_items": "错误：订单是空的", "no_slot": "错误：缺少{x}", "no_quote": "错误：还没有报价",
        "unconfirmed": "错误：用户还没有确认", "done": "错误：已经下过单了",
    },
}  # fmt: skip

DESCRIPTIONS: dict[Language, dict[str, str]] = {
    "en": {
        "search_menu": "Dishes on the menu of a kind or of a similar name.",
        "get_dish": "Price, spiciness, whether vegan, and minutes of a dish.",
        "add_item": "Puts a dish into the order.",
        "update_item": "Changes a dish that is in the order.",
        "remove_item": "Takes a dish out of the order.",
        "set_delivery": "Sets where, when and how to deliver; any of the arguments.",
        "apply_coupon": "Applies the user's coupon.",
        "quote": "The order as it stands with its total, to be read back to the user.",
        "place_order": "Places the order, once the user has confirmed the quote.",
        **{name: name.replace("_", " ") + "." for name in DISTRACTORS},
    },
    "zh": {
        "search_menu": "按种类或相近的名称查菜单。", "get_dish": "一道菜的价格、辣不辣、是否纯素和分钟数。",
        "add_item": "把一道菜加入订单。", "update_item": "更改订单里的一道菜。", "remove_item": "从订单里去掉一道菜。",
        "set_delivery": "设定送到哪里、何时送、怎么送；参数可任选。", "apply_coupon": "使用用户的优惠券。",
        "quote": "当前订单及总价，用来读给用户听。", "place_order": "用户确认报价后下单。",
        "track_order": "查询订单进度。", "rate_dish": "给菜打分。", "book_table": "订餐桌。", "call_taxi": "叫出租车。",
        "get_weather": "查天气。", "list_jobs": "列出职位。", "send_gift": "送礼物。", "join_club": "加入会员。",
        "find_store": "查找门店。", "play_music": "播放音乐。", "report_bug": "报告故障。",
        "change_language": "更换语言。",
    },
}  # fmt: skip


def tools_for(level: Level, language: Language) -> dict[str, Tool]:
    """The tools of a level by name; distractors are real tools that never help."""
    settings, text = level.settings, {"type": "string"}
    quantity = {"type": "integer", "minimum": 1, "maximum": MAX_QUANTITY}
    options = {
        option: {"type": "string", "enum": [shown(value, language) for value in OPTION_VALUES[option]]}
        for option in settings["options"]
    }
    item = {"dish": text, "quantity": quantity, **options}
    schemas = {
        "search_menu": _schema({"query": text}),
        "get_dish": _schema({"dish": text}),
        "add_item": _schema(item),
        "update_item": {**_schema(item), "required": ["dish"], "minProperties": 2},
        "remove_item": _schema({"dish": text}),
        "set_delivery": {**_schema(dict.fromkeys(settings["slots"], text)), "required": [], "minProperties": 1},
        "apply_coupon": _schema({"code": text}),
        "quote": _schema({}),
        "place_order": _schema({}),
    }
    schemas.update({name: {"type": "object", "properties": {}} for name in DISTRACTORS[: settings["distractors"]]})
    return {name: Tool(name, DESCRIPTIONS[language][name], schema) for name, schema in schemas.items()}


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def compact_line(tools: dict[str, Tool]) -> str:
    """All tools with the names of their arguments, on one line."""
    return ", ".join(f"{tool.name}({' '.join(tool.parameters['properties'])})" for tool in tools.values())


class Kitchen:
    """Runs tools on `state`.  Arguments have passed their schema."""

    def __init__(
        self, state: dict[str, Any], task: dict[str, Any], settings: dict[str, Any], language: Language
    ) -> None:
        self.state, self.task, self.settings = state, task, settings
        self.language: Language = language

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's answer.  Raises ToolError."""
        if name in DISTRACTORS:
            return self.text("nothing")
        if self.state["placed"] and name not in ("search_menu", "get_dish"):
            raise self.error("done")
        tool: Callable[..., str] = getattr(self, name)
        return tool(**arguments)

    def text(self, event: str, **words: str) -> str:
        return RESULT[self.language][event].format(**words)

    def error(self, event: str, **words: str) -> ToolError:
        return ToolError(self.text(event, **words))

    def dish(self, written: str) -> str:
        dish = meant_as(written, "dish")
        if dish is None:
            raise self.error("unknown_dish", x=echo(written))
        return dish

    def in_order(self, written: str) -> str:
        dish = self.dish(written)
        if dish not in self.state["basket"]:
            raise self.error("absent", x=shown(dish, self.language))
        return dish

    def changed(self) -> None:
        self.state["quote"], self.state["confirmed"] = None, False

    def basket(self) -> list[dict[str, Any]]:
        return [{"dish": dish, **entry} for dish, entry in self.state["basket"].items()]

    # ---- The tools -----------------------------------------------------------------------------------------------

    def search_menu(self, query: str) -> str:
        kind, dish = meant_as(query, "kind"), meant_as(query, "dish") or spelt(query, self.language)
        hits = [one for one in DISHES if one == dish or MENU[one][1] == kind]
        hits = [one for one in hits if one not in self.task["out_of_stock"]]
        if not hits:
            return self.text("empty")
        self.state["found"][normal(query)] = hits
        return ", ".join(shown(one, self.language) for one in hits)

    def get_dish(self, dish: str) -> str:
        found = self.dish(dish)
        if found not in self.state["looked"]:
            self.state["looked"].append(found)
        facts = [f"{shown(fact, self.language)} {fact_shown(found, fact, self.language)}" for fact in FACTS]
        return f"{shown(found, self.language)}: " + ", ".join(facts)

    def add_item(self, dish: str, quantity: float, **options: str) -> str:
        found = self.dish(dish)
        if found in self.state["basket"]:
            raise self.error("twice", x=shown(found, self.language))
        if found in self.task["out_of_stock"]:
            if found not in self.state["sold_out"]:
                self.state["sold_out"].append(found)
            raise self.error("sold_out", x=shown(found, self.language))
        self.state["basket"][found] = {"quantity": int(quantity), **self.options(options)}
        self.changed()
        return self.line(found)

    def update_item(self, dish: str, **fields: Any) -> str:
        found = self.in_order(dish)
        if "quantity" in fields:
            self.state["basket"][found]["quantity"] = int(fields.pop("quantity"))
        self.state["basket"][found].update(self.options(fields))
        self.changed()
        return self.line(found)

    def options(self, written: dict[str, str]) -> dict[str, str]:
        return {option: str(meant_as(value, option)) for option, value in written.items()}

    def line(self, dish: str) -> str:
        item = {"dish": dish, **self.state["basket"][dish]}
        return self.text("ok", x=item_text(item, self.language))

    def remove_item(self, dish: str) -> str:
        found = self.in_order(dish)
        del self.state["basket"][found]
        self.changed()
        return self.text("removed", x=shown(found, self.language))

    def set_delivery(self, **slots: str) -> str:
        values: dict[str, str] = {}
        for slot, written in slots.items():
            value = meant_as(written, slot)
            if value is None:
                raise self.error("unknown_value", k=shown(slot, self.language), x=echo(written))
            values[slot] = value
        self.state["delivery"].update(values)
        self.changed()
        return self.text("ok", x=", ".join(shown(value, self.language) for value in values.values()))

    def apply_coupon(self, code: str) -> str:
        """Takes the coupon that the user has and no other: there is no way to take one back."""
        coupon = meant_as(code, "coupon")
        if coupon is None or coupon != self.task["coupon"]:
            raise self.error("coupon", x=echo(code))
        self.state["coupon"] = coupon
        self.changed()
        return self.text("ok", x=shown(coupon, self.language))

    def quote(self) -> str:
        if not self.state["basket"]:
            raise self.error("no_items")
        for slot in self.settings["slots"]:
            if slot not in self.state["delivery"]:
                raise self.error("no_slot", x=shown(slot, self.language))
        self.state["quote"] = total_of(self.basket(), self.state["coupon"])
        return self.quoted()

    def quoted(self) -> str:
        """The order with its quoted total, as `quote` answers it."""
        slots = [self.state["delivery"][slot] for slot in self.settings["slots"]]
        return quote_text(self.basket(), slots, self.state["quote"], self.language)

    def place_order(self) -> str:
        if self.state["quote"] is None:
            raise self.error("no_quote")
        if not self.state["confirmed"]:
            raise self.error("unconfirmed")
        self.state["placed"] = True
        return self.text("placed")
