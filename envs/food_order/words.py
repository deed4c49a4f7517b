"""The words of both languages: how an id is shown, and which id a written word means.

Ids are the English words themselves, so that a small model can copy them; tools accept the words of either language.
"""

from __future__ import annotations

import functools
import unicodedata

from envs.calls import Language
from envs.food_order.tasks import COUPONS, DISHES, FACTS, KINDS, NOT_ON_MENU, OPTION_VALUES, SLOT_VALUES

ZH: dict[str, str] = {
    "miso-ramen": "味噌拉面", "pad-thai": "泰式炒面", "cold-soba": "凉荞麦面", "tofu-curry": "豆腐咖喱",
    "fish-curry": "鲜鱼咖喱", "corn-soup": "玉米汤", "onion-soup": "洋葱汤", "green-salad": "蔬菜沙拉",
    "egg-salad": "鸡蛋沙拉", "lemon-pie": "柠檬派", "rice-cake": "白年糕", "plum-tea": "梅子茶",
    "dragon-soup": "龙须汤", "moon-cake": "月饼", "snow-crab": "雪蟹",
    "noodles": "面条", "curry": "咖喱", "soup": "汤", "salad": "沙拉", "sweets": "甜品", "drinks": "饮料",
    "oak street": "橡树街", "pine road": "松树路", "city hall": "市政厅", "lake house": "湖边屋", "north gate": "北门",
    "old bridge": "老桥", "rose garden": "玫瑰园", "post office": "邮局", "book store": "书店", "main station": "总站",
    "hill farm": "山农场", "green tower": "绿塔",
    "noon": "中午", "1 pm": "下午1点", "5 pm": "下午5点", "6 pm": "晚上6点", "7 pm": "晚上7点", "8 pm": "晚上8点",
    "cash": "现金", "card": "刷卡", "app": "手机支付",
    "anna": "安娜", "ben": "小本", "carl": "卡尔", "dora": "朵拉", "emil": "埃米", "fay": "小菲",
    "ring the bell": "按门铃", "no bag": "不要袋子", "call me": "打电话", "leave outside": "放门口",
    "small": "小份", "large": "大份", "mild": "微辣", "hot": "特辣",
    "spring": "春天", "lucky": "好运", "summer": "夏天",
    "place": "地点", "time": "时间", "payment": "付款", "name": "名字", "note": "备注", "size": "份量", "spice": "辣度",
    "price": "价格", "spicy": "辣", "vegan": "纯素", "minutes": "分钟", "yes": "是", "no": "否",
}  # fmt: skip


def shown(word: str, language: Language) -> str:
    """An id as the user and the tools write it."""
    return word if language == "en" else ZH[word]


def normal(text: str) -> str:
    """Full-width forms, case and runs of spaces do not count."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


_MEANT = {ZH[word]: word for word in ZH} | {word: word for word in ZH}


def meant(written: str) -> str | None:
    """The id that a written word means, in either language, or None."""
    word = _MEANT.get(written)
    return word if word is not None else _MEANT.get(normal(written))


@functools.cache
def words_of(kind: str) -> frozenset[str]:
    """The ids of a kind: dish, kind, fact, coupon, an order slot or a dish option."""
    groups = {"dish": DISHES, "kind": KINDS, "fact": FACTS, "coupon": COUPONS, "unlisted": NOT_ON_MENU}
    return frozenset({**groups, **SLOT_VALUES, **OPTION_VALUES}[kind])


def meant_as(written: str, kind: str) -> str | None:
    """The id of `kind` that a written word means, or None."""
    word = meant(written)
    return word if word in words_of(kind) else None


def misspelt(dish: str, language: Language) -> str:
    """A dish with one slip of the pen that leaves no other dish in doubt."""
    word = shown(dish, language)
    return word[:-2] + word[-1] + word[-2] if language == "en" else word[0] + word[2:] + word[1]


def spelt(written: str, language: Language) -> str | None:
    """The dish that a misspelt word means, or None."""
    return next((dish for dish in DISHES if misspelt(dish, language) == normal(written)), None)
