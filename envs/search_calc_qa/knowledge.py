"""The fictional knowledge base: who and what there is, which pages tell of it, and how they refer to each other.

A `Layout` is everything but the counted numbers, which each task draws anew: so a search index is built once for each
layout and serves many tasks, and yet no number can be learnt by heart.  Words live in `texts`, ranking in `index`.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any, Literal

from envs.search_calc_qa import lexicon
from envs.search_calc_qa.levels import LEVELS
from envs.search_calc_qa.lexicon import Name

Kind = Literal["town", "person", "story"]
LAYOUTS = 256  # of each level; their numbers and questions make the tasks many
FIRST_YEAR, LAST_YEAR = 2015, 2024


@dataclass(frozen=True, slots=True)
class Page:
    """One page: what it says of its subject, as of `year` (None where nothing is ever out of date).

    `source` is an index into `lexicon.SOURCES` where the title does not tell the year, None where it does.
    `home` and `boss` are subjects; `fillers` index `lexicon.FILLERS`.
    """

    subject: int
    version: int
    year: int | None
    source: int | None
    home: int | None
    boss: int | None
    fillers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A town or a person that pages tell of, or a story about a town, which tells nothing that can be counted.

    `pages` are in no order of age; `latest` is the one that counts.  `about` are the subjects that a story names.
    """

    kind: Kind
    name: Name
    pages: tuple[int, ...]
    latest: int
    about: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """A knowledge base without its numbers.  Subjects and pages are referred to by their place in these tuples."""

    subjects: tuple[Subject, ...]
    pages: tuple[Page, ...]
    attributes: dict[Kind, tuple[str, ...]]
    titled_years: bool

    def attributes_of(self, subject: int) -> tuple[str, ...]:
        return self.attributes[self.subjects[subject].kind]

    def pages_to_read(self, subject: int) -> tuple[int, ...]:
        """The pages without which the latest facts are not known: all, where titles do not tell the year."""
        return (self.subjects[subject].latest,) if self.titled_years else self.subjects[subject].pages

    def names_on(self, page: int) -> frozenset[str]:
        """English names of the towns and people that a page or its title names."""
        told = self.pages[page]
        subject = self.subjects[told.subject]
        named = {self.subjects[other].name.en for other in (told.home, told.boss, *subject.about) if other is not None}
        return frozenset(named if subject.kind == "story" else named | {subject.name.en})

    def names_in_titles(self, subject: int) -> frozenset[str]:
        it = self.subjects[subject]
        return frozenset({self.subjects[it.about[0]].name.en} if it.kind == "story" else {it.name.en})


def build_layout(settings: dict[str, Any], rng: random.Random) -> Layout:
    """A layout drawn from `rng`; `settings` are a level's (see `levels`)."""
    alike = set(rng.sample(range(lexicon.FIRST_WORDS), settings["first_words"]))
    second = len(lexicon.TOWN_NAMES) // lexicon.FIRST_WORDS
    towns = rng.sample([name for i, name in enumerate(lexicon.TOWN_NAMES) if i // second in alike], settings["towns"])
    people = rng.sample(lexicon.PERSON_NAMES, settings["people"])
    first_person = len(towns)
    subjects: list[Subject] = []
    pages: list[Page] = []

    def add(kind: Kind, name: Name, about: tuple[int, ...] = ()) -> None:
        number = len(subjects)
        count = 1 if kind == "story" or settings["stale"] == "none" else rng.choice((1, 2, 2))
        years = rng.sample(range(FIRST_YEAR, LAST_YEAR + 1), count)
        sources = rng.sample(range(len(lexicon.SOURCES)), count)
        homes: list[int | None] = [None] * count
        bosses: list[int | None] = [None] * count
        if kind == "person":
            homes = list(rng.sample(range(len(towns)), count))
            if settings["boss"]:
                others = [first_person + i for i in range(len(people)) if first_person + i != number]
                bosses = list(rng.sample(others, count))
        start = len(pages)
        dated = settings["stale"] != "none" and kind != "story"
        for version in range(count):
            fillers = tuple(rng.sample(range(len(lexicon.FILLERS)), settings["fillers"]))
            source = sources[version] if dated and settings["stale"] == "in_text" else None
            year = years[version] if dated else None
            pages.append(Page(number, version, year, source, homes[version], bosses[version], fillers))
        latest = start + max(range(count), key=years.__getitem__)
        subjects.append(Subject(kind, name, tuple(range(start, start + count)), latest, about))

    for name in towns:
        add("town", name)
    for name in people:
        add("person", name)
    for number, place in enumerate(rng.sample(range(len(towns)), settings["stories"])):
        about = (place, rng.choice([other for other in range(len(towns)) if other != place]))
        add("story", lexicon.STORIES[number % len(lexicon.STORIES)], about)
    attributes: dict[Kind, tuple[str, ...]] = {
        "town": tuple(rng.sample(list(lexicon.TOWN_ATTRIBUTES), settings["attributes"])),
        "person": tuple(rng.sample(list(lexicon.PERSON_ATTRIBUTES), settings["attributes"])),
        "story": (),
    }
    return Layout(tuple(subjects), tuple(pages), attributes, settings["stale"] != "in_text")


def draw_numbers(
    layout: Layout, limit: int, fixed: dict[tuple[int, str], int], rng: random.Random
) -> list[dict[str, int]]:
    """What each page counts, by attribute: from 2 to `limit`, never the same on two pages of one subject.

    `fixed` says what the latest page of a (subject, attribute) must count.
    """
    numbers: list[dict[str, int]] = [{} for _ in layout.pages]
    for index, subject in enumerate(layout.subjects):
        for attribute in layout.attributes[subject.kind]:
            drawn = _draw_apart(rng, limit, len(subject.pages) + 1)
            wanted = fixed.get((index, attribute), drawn[-1])
            others = [number for number in drawn if number != wanted]
            for page in subject.pages:
                numbers[page][attribute] = wanted if page == subject.latest else others.pop()
    return numbers


def _draw_apart(rng: random.Random, limit: int, count: int) -> list[int]:
    """`count` different numbers from 2 to `limit`, far fewer than there are.

    By rejection, straight from the bits: half of the time that a new task takes went into `rng.sample`.
    """
    drawn: list[int] = []
    span = limit - 1
    bits = span.bit_length()
    while len(drawn) < count:
        number = rng.getrandbits(bits)
        if number < span and number + 2 not in drawn:
            drawn.append(number + 2)
    return drawn


@functools.lru_cache(maxsize=4096)
def layout_of(level: int, number: int) -> Layout:
    """The layout of that number on a level; the same in every process."""
    return build_layout(LEVELS[level - 1].settings, random.Random(f"layout:{level}:{number}"))
