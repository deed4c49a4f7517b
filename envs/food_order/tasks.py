"""What is ordered: the menu, the levels and the semantic tasks, free of language and wording.

A task is plain JSON.  `items` and `slots` are what the user first wants; `changes` (said later), `out_of_stock` (a dish
to its fallback or None) and `budget` turn them into the goal while the dialogue runs.  `noise` follows from the
signature, so equal signatures mean equal tasks.
"""

from __future__ import annotations

import random
from typing import Any

from envs.calls import canonical_json
from envs.contract import Level
from envs.splits import stable_hash

#: dish -> price, kind, spicy, vegan, minutes
MENU: dict[str, tuple[int, str, bool, bool, int]] = {
    "miso-ramen": (9, "noodles", False, False, 15),
    "pad-thai": (8, "noodles", True, False, 20),
    "cold-soba": (7, "noodles", False, True, 10),
    "tofu-curry": (8, "curry", True, True, 20),
    "fish-curry": (9, "curry", True, False, 25),
    "corn-soup": (4, "soup", False, True, 10),
    "onion-soup": (5, "soup", False, False, 15),
    "green-salad": (4, "salad", False, True, 5),
    "egg-salad": (5, "salad", False, False, 5),
    "lemon-pie": (3, "sweets", False, False, 5),
    "rice-cake": (2, "sweets", False, True, 5),
    "plum-tea": (2, "drinks", False, True, 5),
}
DISHES = tuple(MENU)
KINDS = tuple(dict.fromkeys(entry[1] for entry in MENU.values()))
NOT_ON_MENU = ("dragon-soup", "moon-cake", "snow-crab")
FACTS = ("price", "spicy", "vegan", "minutes")

#: order slots and their values; `coupon` is volunteered by the user and never asked for
SLOT_VALUES: dict[str, tuple[str, ...]] = {
    "place": (
        "oak street", "pine road", "city hall", "lake house", "north gate", "old bridge",
        "rose garden", "post office", "book store", "main station", "hill farm", "green tower",
    ),
    "time": ("noon", "1 pm", "5 pm", "6 pm", "7 pm", "8 pm"),
    "payment": ("cash", "card", "app"),
    "name": ("anna", "ben", "carl", "dora", "emil", "fay"),
    "note": ("ring the bell", "no bag", "call me", "leave outside"),
}  # fmt: skip
COUPONS = ("spring", "lucky", "summer")
COUPON_VALUE = 2
OPTION_VALUES: dict[str, tuple[str, ...]] = {"size": ("small", "large"), "spice": ("mild", "hot")}
LARGE_EXTRA = 1
DISTRACTORS = (
    "track_order", "rate_dish", "book_table", "call_taxi", "get_weather", "list_jobs",
    "send_gift", "join_club", "find_store", "play_music", "report_bug", "change_language",
)  # fmt: skip
NOISES = ("silence", "refusal", "vague", "counter")


def _level(index: int, name: str, max_turns: int, **settings: Any) -> Level:
    base: dict[str, Any] = {
        "items": (1, 1),  # how many dishes
        "slots": ("place",),  # order slots that the assistant must learn
        "options": (),  # dish options that the assistant must learn
        "upfront": 0,  # order slots told in the first message
        "slots_per_turn": 1,  # most order slots in one answer: above 1, answers are over-full
        "items_per_turn": 1,
        "options_told": 0.0,  # chance that the options of a dish come with its name
        "calls_per_turn": 1,  # how many calls the expert makes in one message
        "facts": 0.0,  # chance that a question about the dish comes with an item
        "vague_dish": 0.0,  # chance that a dish is described or misspelt, so that the menu must be searched
        "out_of_stock": 0.0,
        "changes": (0, 0),  # how many changes of mind
        "budget": 0.0,
        "coupon": 0.0,
        "noise": 0.0,  # chance, for each slot, that the first answer is silent, refused, vague or a question
        "typos": 0.0,  # chance, for each user message, of misspelt small words or full-width digits
        "distractors": 0,
    }
    return Level(index, name, max_turns, {**base, **settings})


LEVELS = (
    _level(1, "one dish, one slot", 10, upfront=1),
    _level(2, "two slots to ask for", 16, slots=("place", "time")),
    _level(3, "two dishes and a question", 20, items=(1, 2), slots=("place", "time"), facts=0.3),
    _level(
        4, "sizes, changes, some noise", 24, items=(1, 2), slots=("place", "time"), options=("size",), facts=0.2,
        changes=(0, 1), noise=0.15, coupon=0.2,
    ),
    _level(
        5, "out of stock and vague dishes", 28, items=(1, 3), slots=("place", "time", "payment"), facts=0.3,
        changes=(0, 1), noise=0.15, coupon=0.2, vague_dish=0.2, out_of_stock=0.2, typos=0.1, budget=0.2,
    ),
    _level(
        6, "long orders, full answers", 30, items=(3, 4), slots=("place", "time", "payment", "name"), options=("size",),
        slots_per_turn=2, items_per_turn=2, options_told=0.5, calls_per_turn=2,
        facts=0.2, changes=(1, 1), noise=0.15, coupon=0.3, vague_dish=0.15,
        out_of_stock=0.15, typos=0.2, budget=0.3, distractors=6,
    ),
    _level(
        7, "six dishes, ten slots, much noise", 30, items=(4, 6), slots=tuple(SLOT_VALUES), options=("size", "spice"),
        slots_per_turn=3, items_per_turn=3, options_told=0.8, calls_per_turn=8,
        facts=0.2, changes=(1, 2), noise=0.15, coupon=0.4, vague_dish=0.1,
        out_of_stock=0.1, typos=0.3, budget=0.4, distractors=12,
    ),
)  # fmt: skip


def price_of(item: dict[str, Any]) -> int:
    return item["quantity"] * (MENU[item["dish"]][0] + (LARGE_EXTRA if item.get("size") == "large" else 0))


def total_of(items: list[dict[str, Any]], coupon: str | None) -> int:
    return max(0, sum(map(price_of, items)) - (COUPON_VALUE if coupon else 0))


def make_task(level: Level, rng: random.Random) -> dict[str, Any]:
    """A semantic task of a level; the same `rng` state gives the same task."""
    settings = level.settings
    count = rng.randint(*settings["items"])
    dishes = rng.sample(DISHES, count + 4)
    wanted, spare = dishes[:count], dishes[count:]
    items = [_item(dish, settings, rng) for dish in wanted]
    slots = {slot: rng.choice(SLOT_VALUES[slot]) for slot in settings["slots"]}
    out_of_stock: dict[str, str | None] = {}
    for dish in wanted:
        if rng.random() < settings["out_of_stock"] and len(out_of_stock) < 2:
            out_of_stock[dish] = spare.pop() if rng.random() < 0.7 else None
    steady = [dish for dish in wanted if dish not in out_of_stock]
    task: dict[str, Any] = {
        "items": items,
        "slots": slots,
        "coupon": rng.choice(COUPONS) if rng.random() < settings["coupon"] else None,
        "facts": {dish: rng.choice(FACTS) for dish in wanted if rng.random() < settings["facts"]},
        "out_of_stock": out_of_stock,
        "changes": _changes(items, steady, slots, spare, settings, rng),
        "budget": None,
    }
    if len(steady) > 1 and rng.random() < settings["budget"]:
        task["budget"] = sum(price_of(item) for item in items) + rng.choice((-6, 5, 20))
    task["signature"] = canonical_json(task)
    task.update(_noise(task, settings))
    return task


def _item(dish: str, settings: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    item: dict[str, Any] = {"dish": dish, "quantity": rng.randint(1, 3)}
    for option in settings["options"]:
        item[option] = rng.choice(OPTION_VALUES[option])
    return item


def _changes(
    items: list[dict[str, Any]],
    steady: list[str],
    slots: dict[str, str],
    spare: list[str],
    settings: dict[str, Any],
    rng: random.Random,
) -> list[list[Any]]:
    """Changes of mind: ["quantity", dish, n], ["drop", dish], ["swap", dish, other] or ["slot", slot, value]."""
    changes: list[list[Any]] = []
    free, slots_free = list(steady), list(slots)
    for _ in range(rng.randint(*settings["changes"])):
        kind = rng.choice(("quantity", "drop", "swap", "slot"))
        if kind == "slot" or not free or (kind == "drop" and len(free) < 2):
            slot = slots_free.pop(rng.randrange(len(slots_free)))
            changes.append(["slot", slot, rng.choice([v for v in SLOT_VALUES[slot] if v != slots[slot]])])
            continue
        dish = free.pop(rng.randrange(len(free)))
        if kind == "quantity":
            old = next(item["quantity"] for item in items if item["dish"] == dish)
            changes.append([kind, dish, rng.choice([n for n in (1, 2, 3, 4) if n != old])])
        elif kind == "swap":
            changes.append([kind, dish, spare.pop()])
        else:
            changes.append([kind, dish])
    return changes


def _noise(task: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """How the user tells its wishes; the same for the same signature and level."""
    rng = random.Random(stable_hash("noise:" + task["signature"]))
    asked = (*settings["slots"], *settings["options"])
    dishes = [item["dish"] for item in task["items"]]
    return {
        "noise": {slot: rng.choice(NOISES) for slot in asked if rng.random() < settings["noise"]},
        "vague": {dish: rng.choice(("kind", "typo")) for dish in dishes if rng.random() < settings["vague_dish"]},
        "options_told": [dish for dish in dishes if rng.random() < settings["options_told"]],
        "typos": [rng.random() < settings["typos"] for _ in range(20)],
    }
