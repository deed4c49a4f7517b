"""All words that are shown: pages, questions, what tools and the user say; English and Chinese from one meaning.

Nothing here decides anything.  A number on a page comes from the task, everything else on it from the layout.
"""

from __future__ import annotations

import functools
from typing import Any

from envs.calls import Language
from envs.search_calc_qa import lexicon
from envs.search_calc_qa.index import SearchIndex
from envs.search_calc_qa.knowledge import Layout, layout_of

STATED: dict[str, dict[Language, str]] = {
    "search_down": {"en": "error: search is down, try again", "zh": "错误：搜索暂时不可用，请再试一次"},
    "open_down": {"en": "error: the page did not load, try again", "zh": "错误：页面没有加载，请再试一次"},
    "nothing_found": {"en": "error: nothing found", "zh": "错误：没有找到"},
    "no_such_page": {"en": "error: no such page in the results", "zh": "错误：搜索结果里没有这个页面"},
    "too_long": {"en": "error: the expression is too long", "zh": "错误：算式太长"},
    "not_a_number": {"en": "error: that is not a number", "zh": "错误：那不是数字"},
    "not_an_expression": {"en": "error: that is not an expression", "zh": "错误：那不是算式"},
    "division_by_zero": {"en": "error: division by zero", "zh": "错误：除以零"},
    "not_allowed": {"en": "error: only + - * / and brackets", "zh": "错误：只能用 + - * / 和括号"},
    "too_big": {"en": "error: the result is too big", "zh": "错误：结果太大"},
    "right": {"en": "right", "zh": "正确"},
    "wrong": {"en": "wrong", "zh": "不对"},
    "asked": {"en": "I only know the question. Please look it up.", "zh": "我只知道问题，请查一查。"},
    "told": {"en": "Please give the answer with finish.", "zh": "请用 finish 给出答案。"},
    "silent": {"en": "Please go on.", "zh": "请继续。"},
}
_SYSTEM: dict[Language, str] = {"en": "Answer the question with the tools.", "zh": "用工具回答问题。"}
_COMPACT = "search(query) open(page) calculator(expression) finish(answer, unit)"
_LATEST: dict[Language, str] = {"en": "The latest year counts.", "zh": "以最新年份为准。"}


def system(stale: str, compact: bool, language: Language) -> str:
    """The system message; `compact` lists the tools in it, for those who do not send their schemas."""
    parts = [_SYSTEM[language], *([_LATEST[language]] if stale != "none" else []), *([_COMPACT] if compact else [])]
    return " ".join(parts)


def name(layout: Layout, subject: int, language: Language) -> str:
    it = layout.subjects[subject]
    own = getattr(it.name, language)
    if it.kind != "story":
        return own
    place = name(layout, it.about[0], language)
    return f"the {own} of {place}" if language == "en" else f"{place}的{own}"


def title(layout: Layout, page: int, language: Language) -> str:
    """The title of a page: its subject, and the year or the source where there may be several pages on it."""
    told = layout.pages[page]
    subject = name(layout, told.subject, language)
    gap = " " if language == "en" else ""
    if told.source is not None:
        return f"{subject}{gap}{getattr(lexicon.SOURCES[told.source], language)}"
    return subject if told.year is None else f"{subject}{gap}{told.year}"


def page_text(layout: Layout, page: int, numbers: dict[str, int], language: Language) -> str:
    """What a page says.  `numbers` are its counts by attribute."""
    told = layout.pages[page]
    subject = layout.subjects[told.subject]
    own = name(layout, told.subject, language)
    facts: list[str] = []
    if subject.kind == "story":
        other = name(layout, subject.about[1], language)
        facts.append(
            f"{own[0].upper()}{own[1:]} draws visitors from {other}."
            if language == "en"
            else f"{own}吸引{other}的客人。"
        )
    if told.home is not None:
        home = name(layout, told.home, language)
        facts.append(f"{own} lives in {home}." if language == "en" else f"{own}住在{home}。")
    if told.boss is not None:
        boss = name(layout, told.boss, language)
        facts.append(f"{own} works for {boss}." if language == "en" else f"{own}为{boss}工作。")
    if numbers:
        counts = _listed([_count(number, attribute, language) for attribute, number in numbers.items()], language)
        facts.append(f"{own} has {counts}." if language == "en" else f"{own}有{counts}。")
    if told.source is not None:
        facts.insert(0, f"Year {told.year}." if language == "en" else f"{told.year}年。")
    fillers = [getattr(lexicon.FILLERS[i], language) for i in told.fillers]
    middle = len(fillers) // 2
    return (" " if language == "en" else "").join([*fillers[:middle], *facts, *fillers[middle:]])


def _count(number: int, attribute: str, language: Language) -> str:
    noun = lexicon.NOUNS[attribute]
    return f"{number} {noun.en}" if language == "en" else f"{number}{noun.measure}{noun.zh}"


def _listed(parts: list[str], language: Language) -> str:
    if len(parts) == 1:
        return parts[0]
    comma, last = (", ", " and ") if language == "en" else ("、", "和")
    return comma.join(parts[:-1]) + last + parts[-1]


def unit(key: str, language: Language) -> str:
    """How a unit is written in `finish`."""
    if key == "percent":
        return "percent" if language == "en" else "百分比"
    return getattr(lexicon.NOUNS[key], language)


def question(layout: Layout, task: dict[str, Any], language: Language) -> str:
    """The user's question: names only the first subject of each chain."""
    who = [_described(layout, chain, language) for chain in task["chains"]]
    if task["operation"] == "percent":
        who.reverse()  # "how many percent of b is a"
    noun = lexicon.NOUNS[task["attribute"]]
    factor, item = task["factor"], lexicon.NOUNS.get(task["unit"], noun)
    if language == "en":
        return {
            "value": f"How many {noun.en} does {who[0]} have?",
            "difference": f"How many more {noun.en} does {who[0]} have than {who[-1]}?",
            "sum": f"How many {noun.en} do {_listed(who, 'en')} have together?",
            "product": f"Every {noun.en_one} of {who[0]} gets {factor} {item.en}. How many {item.en} is that?",
            "average": f"How many {noun.en} do {_listed(who, 'en')} have on average?",
            "percent": f"How many percent of the {noun.en} of {who[0]} are the {noun.en} of {who[-1]}?",
        }[task["operation"]]
    counted, things = f"多少{noun.measure}{noun.zh}", f"{item.measure}{item.zh}"
    return {
        "value": f"{who[0]}有{counted}？",
        "difference": f"{who[0]}比{who[-1]}多{counted}？",
        "sum": f"{_listed(who, 'zh')}一共有{counted}？",
        "product": f"{who[0]}的每{noun.measure}{noun.zh}配{factor}{things}，一共多少{things}？",
        "average": f"{_listed(who, 'zh')}平均有{counted}？",
        "percent": f"{who[-1]}的{noun.zh}是{who[0]}的{noun.zh}的百分之多少？",
    }[task["operation"]]


def _described(layout: Layout, chain: list[int], language: Language) -> str:
    start, end = name(layout, chain[0], language), layout.subjects[chain[-1]].kind
    if len(chain) == 1:
        return start
    bosses = len(chain) - (2 if end == "town" else 1)
    if language == "en":
        person = "the boss of " * bosses + start
        return f"the place where {person} lives" if end == "town" else person
    person = start + "的老板" * bosses
    return f"{person}住的地方" if end == "town" else person


@functools.lru_cache(maxsize=1024)
def search_index(level: int, layout_number: int, language: Language) -> SearchIndex:
    """The search index of a layout, without the numbers, which differ from task to task and are not searched."""
    layout = layout_of(level, layout_number)
    documents: list[tuple[str, str]] = []
    for subject in layout.subjects:
        titles = " ".join(title(layout, page, language) for page in subject.pages)
        nothing = dict.fromkeys(layout.attributes[subject.kind], 0)
        documents.append((titles, " ".join(page_text(layout, page, nothing, language) for page in subject.pages)))
    return SearchIndex(documents)


@functools.lru_cache(maxsize=1024)
def pages_by_title(level: int, layout_number: int, language: Language) -> dict[str, int]:
    """Pages by their folded titles."""
    layout = layout_of(level, layout_number)
    return {fold(title(layout, page, language)): page for page in range(len(layout.pages))}


def fold(text: str) -> str:
    """Text without the differences in case and blanks that no tool cares for."""
    return " ".join(text.casefold().split())
