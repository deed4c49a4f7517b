"""One finding of the doctor, and the table that a person reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` is what was found; `advice` what to do about it, empty exactly when the status is ok."""

    name: str
    status: Status
    detail: str
    advice: str = ""

    def __post_init__(self) -> None:
        if (self.status == "ok") == bool(self.advice):
            raise ValueError(f"{self.name}: a check that is not ok gives advice, and only such a one")


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def warn(name: str, detail: str, advice: str) -> Check:
    return Check(name, "warn", detail, advice)


def fail(name: str, detail: str, advice: str) -> Check:
    return Check(name, "fail", detail, advice)


def attempt(name: str, look: Callable[[], Check], advice: str) -> Check:
    """`look()`, or a failed check when it raises: a doctor reports what breaks and goes on to the next patient."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001  whatever broke is the finding
        return fail(name, f"{type(error).__name__}: {error}", advice)


def render(checks: Sequence[Check]) -> Table:
    """A rich table, one row a check, advice below its finding."""
    from rich.markup import escape
    from rich.table import Table

    style = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for check in checks:
        text = escape(check.detail) + (f"\n[dim]→ {escape(check.advice)}[/]" if check.advice else "")
        table.add_row(f"[{style[check.status]}]{check.status}[/]", escape(check.name), text)
    return table
