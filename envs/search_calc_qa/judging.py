"""What is wrong with a well-formed call: the labels of meaning.

    search      wrong_tool (only the calculation is missing), hallucinated_arg (a name never seen), missing_info (no
                name in it), repeated_call (all it names is listed), wrong_value (a name that the question does not
                need), no_stop (the answer is on the table)
    open        the same; missing_info (not listed yet), wrong_value (an old page, or one on something else)
    calculator  wrong_tool (nothing to calculate), hallucinated_arg (a number never seen), missing_info (operands not
                looked up), reasoning_error (not what the question asks of them), no_stop
    finish      wrong_value (wrong unit, or not the number shown), premature_stop (a look-up is missing),
                reasoning_error (not calculated, and wrong)

A search or an opening that brings a needed page nearer is right however it is put, if it names nothing unseen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from envs.contract import Label
from envs.search_calc_qa import lexicon, programs
from envs.search_calc_qa.calculator import CalculatorError, as_float, calculate, numbers_in
from envs.search_calc_qa.texts import fold

if TYPE_CHECKING:
    from envs.search_calc_qa.env import SearchCalcQAEnv

LABELS = frozenset(
    {
        Label.ARGS_MISSING,
        Label.ARGS_EXTRA,
        Label.ARGS_TYPE,
        Label.WRONG_TOOL,
        Label.HALLUCINATED_ARG,
        Label.WRONG_VALUE,
        Label.MISSING_INFO,
        Label.REPEATED_CALL,
        Label.REDUNDANT_ASK,
        Label.PREMATURE_STOP,
        Label.NO_STOP,
        Label.REASONING_ERROR,
    }
)


def judge_call(env: SearchCalcQAEnv, name: str, arguments: dict[str, Any]) -> Label:
    """The label of a call whose arguments fit its tool's schema, in the present state, which it leaves alone."""
    if name == "finish":
        return _judge_finish(env, arguments["answer"], arguments["unit"])
    if name == "calculator":
        return _judge_calculator(env, arguments["expression"])
    text = arguments["query" if name == "search" else "page"]
    named = lexicon.names_in(text) if len(text) < 1000 else frozenset()
    unseen = bool(named) and not named <= seen_names(env)
    if not env.unknown():
        if env.shown_answer() is None:
            return Label.WRONG_TOOL
        return Label.HALLUCINATED_ARG if unseen else Label.NO_STOP
    if unseen:
        return Label.HALLUCINATED_ARG
    return _judge_search(env, text, named) if name == "search" else _judge_open(env, text, named)


def seen_names(env: SearchCalcQAEnv) -> set[str]:
    """English names of all towns and people that the question, a list of titles or a page read has named."""
    layout = env.layout
    seen = {layout.subjects[chain[0]].name.en for chain in env.task["chains"]}
    for subject in _members(env.state["listed"]):
        seen |= layout.names_in_titles(subject)
    for page in _members(env.state["read"]):
        seen |= layout.names_on(page)
    return seen


def _members(bits: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _judge_search(env: SearchCalcQAEnv, query: str, named: frozenset[str]) -> Label:
    needed = env.unknown()
    if any(subject in needed and not env.is_listed(subject) for subject in env.find(query)):
        return Label.OK
    if not named:
        return Label.MISSING_INFO
    subjects = [i for i, subject in enumerate(env.layout.subjects) if subject.name.en in named]
    return Label.REPEATED_CALL if subjects and all(map(env.is_listed, subjects)) else Label.WRONG_VALUE


def _judge_open(env: SearchCalcQAEnv, title: str, named: frozenset[str]) -> Label:
    page = env.titles.get(fold(title))
    if page is None:
        listed = any(env.is_listed(i) for i, subject in enumerate(env.layout.subjects) if subject.name.en in named)
        if not named:
            return Label.HALLUCINATED_ARG
        return Label.WRONG_VALUE if listed else Label.MISSING_INFO
    subject = env.layout.pages[page].subject
    if not env.is_listed(subject):
        return Label.MISSING_INFO
    if env.is_read(page):
        return Label.REPEATED_CALL
    wanted = subject in env.needed and page in env.layout.pages_to_read(subject)
    return Label.OK if wanted else Label.WRONG_VALUE


def _judge_calculator(env: SearchCalcQAEnv, expression: str) -> Label:
    task, unknown = env.task, env.unknown()
    if task["operation"] == "value":
        return Label.NO_STOP if not unknown else Label.WRONG_TOOL
    if not programs.CONSTANTS.union(_seen_numbers(env)).issuperset(numbers_in(expression)):
        return Label.HALLUCINATED_ARG
    try:
        value = calculate(expression)
    except CalculatorError as error:
        if error.fault == "not_a_number":
            return Label.MISSING_INFO if unknown else Label.WRONG_VALUE
        value = None
    values = env.operands()
    if value is not None:
        on_the_way = programs.partial_results(task["operation"], values)
        if not unknown and env.shown_answer() is None:
            on_the_way.append(task["answer"])
        if any(abs(value - some) < 1e-3 for some in on_the_way) and env.shown_answer() is None:
            return Label.OK
    if None in values:
        return Label.MISSING_INFO
    return Label.NO_STOP if env.shown_answer() is not None else Label.REASONING_ERROR


def _seen_numbers(env: SearchCalcQAEnv) -> set[float]:
    seen = {float(env.task["factor"]), *env.state["results"]}
    for page, told in enumerate(env.layout.pages):
        if env.is_read(page):
            seen.update(map(float, env.task["numbers"][page].values()))
            if told.year is not None:
                seen.add(float(told.year))
    return seen


def _judge_finish(env: SearchCalcQAEnv, answer: Any, unit: str) -> Label:
    if lexicon.unit_key(unit) != env.task["unit"]:
        return Label.WRONG_VALUE
    if env.unknown():
        return Label.PREMATURE_STOP
    if programs.right(as_float(answer), env.task["answer"]):
        return Label.OK
    return Label.WRONG_VALUE if env.shown_answer() is not None else Label.REASONING_ERROR
