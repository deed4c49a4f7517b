"""The difficulty ladder of the search-and-calculate environment.

Settings, all of which are stated on every level:
    towns, people, stories   how many subjects of each kind the knowledge base has; stories only distract
    first_words              towns share this many first words: the fewer, the more alike their names
    attributes               numbers on each page, of which a question wants one
    boss                     people have bosses, so that chains can have three links
    results                  subjects that a search lists at most
    preview                  a search shows the pages themselves, so that nothing need be opened
    stale                    "none"; "in_title": some subjects have an older page whose title says its year;
                             "in_text": titles say the source, and only the text says the year
    fillers                  sentences on each page that tell nothing
    down                     search and open each fail once, saying so
    max_number               numbers on pages are 2 to this
    questions                (operation, links of each operand's chain of look-ups), drawn evenly
"""

from __future__ import annotations

from typing import Any

from envs.contract import Level

_BASE: dict[str, Any] = {
    "towns": 4,
    "people": 0,
    "stories": 0,
    "first_words": 12,
    "attributes": 1,
    "boss": False,
    "results": 2,
    "preview": False,
    "stale": "none",
    "fillers": 0,
    "down": False,
    "max_number": 30,
    "questions": (("value", (1,)),),
}


def _level(index: int, name: str, max_turns: int, **settings: Any) -> Level:
    return Level(index, name, max_turns, {**_BASE, **settings})


LEVELS: tuple[Level, ...] = (
    _level(1, "read", 2, results=1, preview=True),
    _level(2, "look up", 10, people=3, questions=(("value", (1,)), ("value", (2,)), ("value", (2,)))),
    _level(
        3,
        "calculate",
        14,
        towns=5,
        people=3,
        questions=(("value", (2,)), ("difference", (1, 1)), ("sum", (1, 1)), ("product", (1,))),
    ),
    _level(
        4,
        "chains and stale pages",
        20,
        towns=6,
        people=4,
        stories=2,
        first_words=4,
        attributes=2,
        results=3,
        stale="in_title",
        max_number=60,
        questions=(("difference", (2, 1)), ("sum", (2, 1)), ("product", (2,)), ("sum", (1, 1, 1))),
    ),
    _level(
        5,
        "failing tools",
        26,
        towns=8,
        people=5,
        stories=4,
        first_words=3,
        attributes=3,
        results=3,
        stale="in_title",
        fillers=1,
        down=True,
        max_number=99,
        questions=(("difference", (2, 2)), ("sum", (2, 2)), ("average", (2, 1, 1)), ("percent", (2, 1))),
    ),
    _level(
        6,
        "long pages",
        30,
        towns=10,
        people=6,
        stories=6,
        first_words=3,
        attributes=3,
        boss=True,
        results=4,
        stale="in_text",
        fillers=4,
        down=True,
        max_number=99,
        questions=(("difference", (3, 1)), ("product", (3,)), ("average", (2, 2)), ("percent", (3, 1))),
    ),
)
