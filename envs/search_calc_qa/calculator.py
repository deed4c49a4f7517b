"""Arithmetic without `eval`: a guard on the text, then simpleeval with four operators and nothing else.

It cannot hang: an expression has at most 100 characters of digits, brackets and + - * /, so no number in it can grow
past a hundred digits, and there is no power, no name, no call and no attribute to be had.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from typing import Any, Literal

import simpleeval

MAX_LENGTH = 100
MAX_VALUE = 1e12
Fault = Literal["too_long", "not_a_number", "not_an_expression", "division_by_zero", "not_allowed", "too_big"]

_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-", "（": "(", "）": ")", "＋": "+", "－": "-"})
_ALLOWED = re.compile(r"[0-9.+\-*/() ]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_EVALUATOR = simpleeval.SimpleEval(operators=_OPERATORS, functions={}, names={})


class CalculatorError(ValueError):
    """Why an expression has no value; `fault` is the reason as a key, for whoever words it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


def canonical(expression: str) -> str:
    """An expression that has a value in ASCII operators and without blanks; any other text as it is."""
    try:
        calculate(expression)
    except CalculatorError:
        return expression
    return "".join(expression.translate(_SPELLINGS).split())


def numbers_in(expression: str) -> list[float]:
    """The number literals of an expression, in order; none of a text longer than an expression may be."""
    return [float(number) for number in _NUMBER.findall(expression)] if len(expression) <= MAX_LENGTH else []


def display(value: float) -> str:
    """A value as the calculator shows it: whole numbers without a point, others to four decimals."""
    return str(round(value)) if abs(value - round(value)) < 5e-5 else f"{value:.4f}".rstrip("0")


@functools.lru_cache(maxsize=10_000)
def calculate(expression: str) -> float:
    """The value of an expression of numbers, brackets and + - * /.  Raises CalculatorError and nothing else."""
    if len(expression) > MAX_LENGTH:
        raise CalculatorError("too_long")
    text = expression.translate(_SPELLINGS).strip()
    if not _ALLOWED.fullmatch(text) or not _NUMBER.search(text):
        raise CalculatorError("not_a_number")
    if "**" in text or "//" in text:
        raise CalculatorError("not_allowed")
    try:
        value = float(_EVALUATOR.eval(text))
    except ZeroDivisionError:
        raise CalculatorError("division_by_zero") from None
    except OverflowError:
        raise CalculatorError("too_big") from None
    except (simpleeval.InvalidExpression, SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise CalculatorError("not_an_expression") from None
    if not abs(value) <= MAX_VALUE:
        raise CalculatorError("too_big")
    return value


def as_float(value: Any) -> float:
    """A JSON number as a float; NaN for what is none or too large to be one."""
    try:
        return float(value) if isinstance(value, int | float) else float("nan")
    except OverflowError:
        return float("nan")
