"""Wording: what the user, the tools and the expert say in either language, and what the assistant's words mean.

`understand` reads what an assistant said, whoever wrote it: the user simulator and the labels see only that.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from envs.calls import Language, canonical_json
from envs.food_order.tasks import DISHES, FACTS, MENU, OPTION_VALUES, SLOT_VALUES
from envs.food_order.words import meant, normal, shown

SAY: dict[Language, dict[str, tuple[str, ...]]] = {
    "en": {
        "first": ("hi, i want {items}.", "hello, {items} please."),
        "first_only": ("hi, i only want {items}.", "hello, only {items} please."),
        "items": ("{items}.", "also {items}."),
        "all": ("that is all.", "no, that is all."),
        "place": ("to {v}.", "{v} please."),
        "time": ("at {v}.", "{v} please."),
        "payment": ("by {v}.", "{v} please."),
        "name": ("{v}.", "{v} please."),
        "note": ("{v}.", "{v} please."),
        "size": ("{v}.", "{v} please."),
        "spice": ("{v}.", "{v} please."),
        "coupon": ("i have the coupon {v}.",),
        "budget": ("i can pay {v}.",),
        "over": ("that is too much.",),
        "price": ("how much is {d}?",),
        "spicy": ("is {d} spicy?",),
        "vegan": ("is {d} vegan?",),
        "minutes": ("how many minutes does {d} take?",),
        "thanks": ("thanks.", "ok, thanks."),
        "yes": ("yes.", "yes please."),
        "bye": ("thanks, bye.",),
        "nothing": ("then nothing, bye.",),
        "pick": ("{v}.", "{v} please."),
        "none": ("none of these.",),
        "instead": ("then {items}.",),
        "leave": ("then no {d}.",),
        "quantity": ("wait, make it {n} {d}.",),
        "drop": ("wait, no {d}.",),
        "swap": ("wait, {d} instead of {o}.",),
        "slot": ("wait, {v} please.",),
        "not_ordered": ("no, that is not what i ordered.",),
        "not_total": ("no, that is not the total.",),
        "total": ("what is the total?",),
        "no_quote": ("i see no quote yet.",),
        "want": ("i want {items}.",),
        "check": ("are you sure? please check.",),
        "silent": ("...",),
        "refusal": ("i do not want to say.",),
        "vague": ("i am not sure.",),
        "counter": ("why do you ask?",),
        "mind": ("i do not mind.",),
        "waiting": ("but my order is not placed yet.",),
        "insist": ("but i want to order.",),
        "hello": ("are you there?",),
        "what": ("what do you mean?",),
    },
    "zh": {
        "first": ("你好，我要{items}。", "您好，请来{items}。"),
        "first_only": ("你好，我只要{items}。", "您好，只来{items}。"),
        "items": ("{items}。", "还要{items}。"),
        "all": ("就这些。", "没有了，就这些。"),
        "place": ("送到{v}。", "请送{v}。"),
        "time": ("{v}。", "请{v}送。"),
        "payment": ("用{v}。", "{v}吧。"),
        "name": ("{v}。", "我叫{v}。"),
        "note": ("{v}。", "请{v}。"),
        "size": ("{v}。", "要{v}。"),
        "spice": ("{v}。", "要{v}。"),
        "coupon": ("我有优惠券{v}。",),
        "budget": ("我能付{v}元。",),
        "over": ("太贵了。",),
        "price": ("{d}多少钱？",),
        "spicy": ("{d}辣吗？",),
        "vegan": ("{d}是纯素吗？",),
        "minutes": ("{d}要几分钟？",),
        "thanks": ("谢谢。", "好的，谢谢。"),
        "yes": ("对。", "对，谢谢。"),
        "bye": ("谢谢，再见。",),
        "nothing": ("那不要了，再见。",),
        "pick": ("{v}。", "要{v}。"),
        "none": ("都不是。",),
        "instead": ("那就{items}。",),
        "leave": ("那就不要{d}了。",),
        "quantity": ("等等，改成{n}份{d}。",),
        "drop": ("等等，不要{d}了。",),
        "swap": ("等等，{o}换成{d}。",),
        "slot": ("等等，改成{v}。",),
        "not_ordered": ("不对，我要的不是这个。",),
        "not_total": ("不对，总价不是这个。",),
        "total": ("一共多少钱？",),
        "no_quote": ("我还没看到报价。",),
        "want": ("我要{items}。",),
        "check": ("确定吗？请再查一下。",),
        "silent": ("……",),
        "refusal": ("我不想说。",),
        "vague": ("我不太确定。",),
        "counter": ("为什么问这个？",),
        "mind": ("随便。",),
        "waiting": ("可是还没有下单。",),
        "insist": ("可是我想点餐。",),
        "hello": ("你在吗？",),
        "what": ("什么意思？",),
    },
}

ASK: dict[Language, dict[str, str]] = {
    "en": {
        "place": "where to?", "time": "when?", "payment": "how will you pay?", "name": "what name?",
        "note": "any note?",
        "more": "anything else?", "size": "what size for {d}?", "spice": "how hot for {d}?",
    },
    "zh": {
        "place": "送到哪里？", "time": "什么时候送？", "payment": "怎么付款？", "name": "您的名字？",
        "note": "有备注吗？",
        "more": "还要别的吗？", "size": "{d}要多大份？", "spice": "{d}要多辣？",
    },
}  # fmt: skip
ANSWER: dict[Language, dict[str, str]] = {
    "en": {
        "fact": "{d}: {f} {v}.",
        "options": "we have {items}.",
        "sorry": "sorry, no {d}.",
        "confirm": "{quote}. ok?",
    },
    "zh": {
        "fact": "{d}：{f}{v}。",
        "options": "我们有{items}。",
        "sorry": "抱歉，没有{d}。",
        "confirm": "{quote}。对吗？",
    },
}
#: what marks each question of an assistant
ASKED: dict[Language, dict[str, str]] = {
    "en": {
        "place": r"where|address", "time": r"when|what time", "payment": r"pay", "name": r"name", "note": r"note",
        "more": r"else", "size": r"size", "spice": r"how hot|spice", "dish": r"what would you like|which dish|how many",
    },
    "zh": {
        "place": r"哪里|地址", "time": r"什么时候|几点", "payment": r"付款|怎么付|支付方式", "name": r"名字|姓名",
        "note": r"备注", "more": r"别的|还要", "size": r"多大", "spice": r"多辣", "dish": r"想吃什么|哪道菜|几份",
    },
}  # fmt: skip
SORRY = {"en": r"sorry|cannot|can not|unable|out of stock", "zh": r"抱歉|无法|(?<!能)不能|缺货|(?<!有)没有(?!问题)"}
BYE = {"en": r"\bbye\b|\bplaced\b|have a nice", "zh": r"再见|已下单|下单成功"}
SLIPS: dict[Language, tuple[tuple[str, str], ...]] = {
    "en": (("please", "plesae"), ("want", "wnat"), ("thanks", "thansk"), ("that is", "thta is"), ("hello", "helo")),
    "zh": (("我要", "窝要"), ("谢谢", "写写"), ("就这些", "就这写"), ("送到", "送道")),
}
_SENTENCE = re.compile(r"[^.!?。]+[.!?。]*")
WIDE = str.maketrans("0123456789", "０１２３４５６７８９")


def item_text(item: dict[str, Any], language: Language, name: str | None = None) -> str:
    """`2 large miso-ramen`, with the options that the item has."""
    options = [shown(item[option], language) for option in OPTION_VALUES if item.get(option)]
    words = [*options, name or shown(item["dish"], language)]
    if language == "en":
        return " ".join([str(item["quantity"]), *words])
    return f"{item['quantity']}份" + "".join(words)


def items_text(texts: list[str], language: Language) -> str:
    return (" and " if language == "en" else "和").join(texts)


def quote_text(items: list[dict[str, Any]], slots: list[str], total: int, language: Language) -> str:
    """The line that `quote` answers and that the assistant reads back."""
    parts = [", ".join(item_text(item, language) for item in items), *(shown(slot, language) for slot in slots)]
    return "; ".join(parts) + ("; total " if language == "en" else "; 共") + str(total)


def fact_value(dish: str, fact: str) -> str:
    """A fact of the menu as an id or a number."""
    value = MENU[dish][{"price": 0, "spicy": 2, "vegan": 3, "minutes": 4}[fact]]
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def fact_shown(dish: str, fact: str, language: Language) -> str:
    value = fact_value(dish, fact)
    return value if value.isdecimal() else shown(value, language)


def with_slips(text: str, language: Language) -> str:
    """The same message, hastily typed: small words misspelt, digits in full width."""
    for right, slip in SLIPS[language]:
        text = text.replace(right, slip)
    return text.translate(WIDE)


@dataclass(frozen=True, slots=True)
class Said:
    """What an assistant's words mean to the user.  `items` maps a dish to (quantity, size, spice).

    `sorry` is a refusal: a sentence that regrets and is no question; beside a question, one that names a dish.
    """

    empty: bool
    asks: tuple[str, ...]
    dishes: tuple[str, ...]
    items: tuple[tuple[str, tuple[int, str | None, str | None]], ...]
    values: frozenset[str]
    total: int | None
    facts: tuple[tuple[str, str, str], ...]
    sorry: bool
    bye: bool
    key: str


@functools.cache
def _patterns(language: Language) -> dict[str, re.Pattern[str]]:
    edge = r"\b" if language == "en" else ""

    def any_of(words: Any) -> str:
        ordered = sorted((shown(word, language) for word in words), key=len, reverse=True)
        return "(?:" + "|".join(map(re.escape, ordered)) + ")"

    dish, gap = any_of(DISHES), r"\s*(?:份|x)?\s*"
    option = "".join(rf"(?:({any_of(values)}){gap})?" for values in OPTION_VALUES.values())
    values = [value for slot in SLOT_VALUES.values() for value in slot]
    fact = rf"({any_of(FACTS)})\s*(?:is|:)?\s*(\d{{1,4}}|{any_of(('yes', 'no'))})"
    return {
        "dish": re.compile(f"{edge}({dish}){edge}"),
        "item": re.compile(rf"(?<!\d)(\d{{1,4}}){gap}{option}({dish}){edge}"),
        "value": re.compile(f"{edge}({any_of(values)}){edge}"),
        "total": re.compile(r"(?:total|共)\s*(?:is|是|为|:|=)?\s*[$¥]?\s*(\d{1,6})"),
        "fact": re.compile(fact),
        "asks": re.compile("|".join(f"(?P<{slot}>{words})" for slot, words in ASKED[language].items())),
        "sorry": re.compile(SORRY[language]),
        "bye": re.compile(BYE[language]),
    }


def understand(text: str, language: Language) -> Said:
    """What the assistant said.  Reads at most 2,000 characters; never raises."""
    return _understand(text[:2000], language)


@functools.lru_cache(maxsize=50_000)
def _understand(text: str, language: Language) -> Said:
    patterns, line = _patterns(language), normal(text)
    dishes = tuple(dict.fromkeys(str(meant(word)) for word in patterns["dish"].findall(line)))
    items: dict[str, tuple[int, str | None, str | None]] = {}
    for quantity, size, spice, dish in patterns["item"].findall(line):
        items[str(meant(dish))] = (int(quantity), meant(size) if size else None, meant(spice) if spice else None)
    totals = patterns["total"].findall(line)
    total = int(totals[-1]) if totals else None
    facts: tuple[tuple[str, str, str], ...] = ()
    if total is None and len(dishes) == 1:
        found = patterns["fact"].findall(line)
        facts = tuple((dishes[0], str(meant(fact)), str(meant(value) or value)) for fact, value in found)
    asking = "?" in line and total is None and not facts
    asks = tuple(dict.fromkeys(str(m.lastgroup) for m in patterns["asks"].finditer(line))) if asking else ()
    values = frozenset(str(meant(word)) for word in patterns["value"].findall(line))
    regrets = [one for one in _SENTENCE.findall(line) if patterns["sorry"].search(one) and not one.endswith("?")]
    refused = any(patterns["dish"].search(one) for one in regrets) or (bool(regrets) and not asks)
    sorry = refused and not facts and total is None
    bye = bool(patterns["bye"].search(line)) and not asks and not facts and total is None
    understood = [not line, asks, dishes, sorted(items.items()), sorted(values), total, facts, sorry, bye]
    return Said(
        not line, asks, dishes, tuple(items.items()), values, total, facts, sorry, bye, canonical_json(understood)
    )
