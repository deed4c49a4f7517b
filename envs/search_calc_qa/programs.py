"""A question is a small program: look-ups, some of them chained, then one operation on what they give.

    value       a                   sum      a + b (+ c)        product   a * factor
    difference  a - b               average  (a + b (+ c)) / n  percent   a / b * 100

A chain is the list of subjects to look up in order; its last one is counted.  Chains share no subject.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

from envs.contract import Level
from envs.search_calc_qa import lexicon
from envs.search_calc_qa.knowledge import LAYOUTS, Layout, draw_numbers, layout_of

TOLERANCE = 0.05
CONSTANTS = frozenset({1.0, 2.0, 3.0, 100.0})  # numbers that a calculation may use without having read them


def make_task(level: Level, rng: random.Random) -> dict[str, Any]:
    """A task as JSON: signature, layout, operation, attribute, chains, relations, factor, unit, numbers, down, answer.

    All that the signature does not say is drawn from the signature, so that equal signatures are equal tasks.
    """
    settings = level.settings
    number = rng.randrange(LAYOUTS)
    layout = layout_of(level.index, number)
    operation, lengths = rng.choice(settings["questions"])
    chains, attribute = _draw_chains(layout, lengths, settings["boss"], rng)
    values = rng.sample(range(2, settings["max_number"] + 1), len(chains))
    if operation == "difference":
        values.sort(reverse=True)
    factor, unit = 1, attribute
    if operation == "product":
        factor, unit = rng.randint(2, 9), rng.choice(list(lexicon.PRODUCT_ITEMS))
    elif operation == "percent":
        unit = "percent"
    signature = f"search_calc_qa:{level.index}:{number}:{operation}:{attribute}:{chains}:{values}:{factor}:{unit}"
    rest = random.Random(signature)
    fixed = {(chain[-1], attribute): value for chain, value in zip(chains, values, strict=True)}
    return {
        "signature": signature,
        "layout": number,
        "operation": operation,
        "attribute": attribute,
        "chains": chains,
        "factor": factor,
        "unit": unit,
        "numbers": draw_numbers(layout, settings["max_number"], fixed, rest),
        "down": {"open": rest.randint(1, 3), "search": rest.randint(1, 3)} if settings["down"] else {},
        "answer": evaluate(operation, values, factor),
    }


def _draw_chains(
    layout: Layout, lengths: tuple[int, ...], boss: bool, rng: random.Random
) -> tuple[list[list[int]], str]:
    """Disjoint chains of these lengths, all ending in subjects of one kind, and what is counted of them."""
    people = [i for i, subject in enumerate(layout.subjects) if subject.kind == "person"]
    towns = [i for i, subject in enumerate(layout.subjects) if subject.kind == "town"]
    ends_in_person = max(lengths) <= (2 if boss else 1) and len(people) >= sum(lengths) and rng.random() < 0.4
    for _ in range(1000):
        chains = []
        for length in lengths:
            start = rng.choice(people if length > 1 or ends_in_person else towns)
            chains.append(follow(layout, start, length, ends_in_person))
        met = list(itertools.chain.from_iterable(chains))
        if len(set(met)) == len(met):
            return chains, rng.choice(layout.attributes["person" if ends_in_person else "town"])
    raise RuntimeError(f"no disjoint chains of lengths {lengths} in this layout")


def follow(layout: Layout, start: int, length: int, ends_in_person: bool) -> list[int]:
    """The subjects met from `start`: bosses, then, unless the chain ends in a person, the home of the last of them."""
    chain = [start]
    while len(chain) < length:
        page = layout.pages[layout.subjects[chain[-1]].latest]
        last = len(chain) == length - 1
        following = page.home if last and not ends_in_person else page.boss
        assert following is not None, "a chain of people needs a layout with bosses"
        chain.append(following)
    return chain


def evaluate(operation: str, values: list[int], factor: int) -> float:
    """The answer to a question whose operands are known."""
    match operation:
        case "value":
            return float(values[0])
        case "difference":
            return float(values[0] - values[1])
        case "sum":
            return float(sum(values))
        case "product":
            return float(values[0] * factor)
        case "average":
            return sum(values) / len(values)
        case "percent":
            return values[0] / values[1] * 100
    raise ValueError(f"unknown operation {operation!r}")


def expressions(operation: str, values: list[int], factor: int) -> list[str]:
    """What to type into the calculator: the expert's way, then others that are as good.  Empty for `value`."""
    match operation:
        case "difference":
            return [f"{values[0]} - {values[1]}"]
        case "sum":
            return [" + ".join(map(str, order)) for order in itertools.permutations(values)]
        case "product":
            return [f"{values[0]} * {factor}", f"{factor} * {values[0]}"]
        case "average":
            return [f"({' + '.join(map(str, order))}) / {len(values)}" for order in itertools.permutations(values)]
        case "percent":
            a, b = values
            return [f"{a} / {b} * 100", f"{a} * 100 / {b}", f"100 * {a} / {b}"]
    return []


def partial_results(operation: str, values: list[int | None]) -> list[float]:
    """What a step-by-step calculation may show on its way; operands that are not known yet are None."""
    known = [value for value in values if value is not None]
    if operation in ("sum", "average"):
        return [float(sum(some)) for size in (2, 3) for some in itertools.combinations(known, size)]
    if operation == "percent" and len(known) == 2:
        return [known[0] / known[1], known[0] * 100.0]
    return []


def right(value: float, answer: float) -> bool:
    """Whether `value` is the answer within tolerance; False for what is no finite number."""
    return math.isfinite(value) and abs(value - answer) <= TOLERANCE
