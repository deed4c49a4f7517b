"""The words of the fictional world, each in both languages; everything else refers to them by number or key.

Names are made of words, never of ids, so that a very small model can copy them.  No name is part of another.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """A proper name in both languages."""

    en: str
    zh: str


@dataclass(frozen=True, slots=True)
class Noun:
    """What is counted.  `measure` is the Chinese measure word."""

    en_one: str
    en: str
    zh: str
    measure: str


_FIRST = (
    ("Oak", "橡木"),
    ("Red", "红叶"),
    ("Green", "青草"),
    ("Stone", "石头"),
    ("Silver", "银色"),
    ("Gold", "金色"),
    ("Winter", "冬日"),
    ("Apple", "苹果"),
    ("Rose", "玫瑰"),
    ("Moon", "月亮"),
    ("Fox", "狐狸"),
    ("Salt", "海盐"),
)
_SECOND = (("Town", "镇"), ("Hill", "山"), ("Lake", "湖"), ("Bay", "湾"), ("Port", "港"), ("Field", "原"))

#: towns come in `FIRST_WORDS` groups of equal size that share their first word
FIRST_WORDS = len(_FIRST)
TOWN_NAMES = tuple(Name(f"{a} {b}", f"{x}{y}") for a, x in _FIRST for b, y in _SECOND)
PERSON_NAMES = tuple(
    Name(en, zh)
    for en, zh in (
        ("Anna", "安娜"),
        ("Ben", "本杰"),
        ("Clara", "克拉"),
        ("David", "大卫"),
        ("Emma", "艾玛"),
        ("Felix", "菲力"),
        ("Grace", "格蕾"),
        ("Henry", "亨利"),
        ("Ida", "艾达"),
        ("Jack", "杰克"),
        ("Kate", "凯特"),
        ("Leo", "里奥"),
        ("Mary", "玛丽"),
        ("Nick", "尼克"),
        ("Olga", "奥佳"),
        ("Paul", "保罗"),
        ("Rosa", "罗莎"),
        ("Sam", "山姆"),
        ("Tina", "蒂娜"),
        ("Victor", "维克"),
    )
)

TOWN_ATTRIBUTES: dict[str, Noun] = {
    "trees": Noun("tree", "trees", "树", "棵"),
    "bridges": Noun("bridge", "bridges", "桥", "座"),
    "shops": Noun("shop", "shops", "商店", "家"),
    "wells": Noun("well", "wells", "水井", "口"),
    "schools": Noun("school", "schools", "学校", "所"),
    "boats": Noun("boat", "boats", "船", "条"),
}
PERSON_ATTRIBUTES: dict[str, Noun] = {
    "cats": Noun("cat", "cats", "猫", "只"),
    "books": Noun("book", "books", "书", "本"),
    "hats": Noun("hat", "hats", "帽子", "顶"),
    "keys": Noun("key", "keys", "钥匙", "把"),
    "hens": Noun("hen", "hens", "母鸡", "只"),
}
PRODUCT_ITEMS: dict[str, Noun] = {
    "lamps": Noun("lamp", "lamps", "灯", "盏"),
    "coins": Noun("coin", "coins", "硬币", "枚"),
    "flags": Noun("flag", "flags", "旗", "面"),
}
NOUNS: dict[str, Noun] = {**TOWN_ATTRIBUTES, **PERSON_ATTRIBUTES, **PRODUCT_ITEMS}

#: what a page that keeps its year in its text is called, beside the name of its subject
SOURCES = (Name("atlas", "图册"), Name("gazette", "公报"))
STORIES = (Name("fair", "集市"), Name("songs", "歌谣"), Name("river walk", "河边漫步"))
FILLERS = (
    Name("The streets are quiet in the morning.", "早晨街上很安静。"),
    Name("Bread is baked before the sun is up.", "天亮之前面包就烤好了。"),
    Name("Visitors come for the music.", "客人们为音乐而来。"),
    Name("In autumn the leaves cover the paths.", "秋天落叶铺满小路。"),
    Name("Old songs are sung at the market.", "集市上唱着老歌。"),
    Name("The rain comes late in the year.", "雨季来得很晚。"),
    Name("Nobody remembers a colder January.", "没人记得更冷的一月。"),
    Name("A lantern burns at every door.", "每扇门前都点着灯笼。"),
)
#: words on no page, in either language
UNKNOWN_WORDS = (Name("volcano", "火山"), Name("pyramid", "金字塔"), Name("submarine", "潜艇"))


@functools.lru_cache(maxsize=20_000)
def names_in(text: str) -> frozenset[str]:
    """The English names of all towns and people that `text` names, in either language, whether they exist or not."""
    folded = text.casefold()
    return frozenset(name.en for name in (*TOWN_NAMES, *PERSON_NAMES) if _named(name, folded))


def _named(name: Name, folded: str) -> bool:
    english = name.en.casefold()
    start = folded.find(english)
    if start < 0:
        return name.zh in folded
    end = start + len(english)
    letter_before = start > 0 and folded[start - 1].isascii() and folded[start - 1].isalpha()
    return not (letter_before or (end < len(folded) and folded[end].isascii() and folded[end].isalpha()))


def unit_key(unit: str) -> str | None:
    """The key of a unit as a person may write it (`trees`, `Tree`, 树, 棵树); None for an unknown one."""
    return _UNITS.get(" ".join(unit.casefold().split()))


_UNITS: dict[str, str] = {"percent": "percent", "%": "percent", "百分比": "percent"}
for _key, _noun in NOUNS.items():
    _UNITS.update({_noun.en: _key, _noun.en_one: _key, _noun.zh: _key, _noun.measure + _noun.zh: _key})
