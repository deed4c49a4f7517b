"""Two evaluations side by side: each measure, the difference with its interval, and whether the intervals are apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from agentrl.evaluation.metrics import METRICS, Estimate, apart, difference
from agentrl.evaluation.suite import EvaluationReport

TITLES = {
    "success": "success",
    "mean_turns": "mean turns",
    "tool_accuracy": "tool accuracy",
    "error_recovery": "error recovery",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of one level (None: all levels pooled)."""

    metric: str
    level: int | None
    before: Estimate
    after: Estimate
    difference: Estimate
    apart: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    names: tuple[str, str]
    confidence: float
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(before: EvaluationReport, after: EvaluationReport) -> Comparison:
    """Every measure, pooled first and then on each level that both played.

    Raises ValueError when the two have intervals of different confidence.
    """
    if before.confidence != after.confidence:
        raise ValueError(
            f"{before.name} has {before.confidence:.0%} intervals and {after.name} {after.confidence:.0%} ones: "
            "score both with one confidence"
        )
    shared = sorted(set(before.by_level) & set(after.by_level))
    pairs = [(None, before.overall, after.overall)]
    pairs += [(level, before.by_level[level], after.by_level[level]) for level in shared]
    rows = []
    for level, old, new in pairs:
        for metric in METRICS:
            a, b = getattr(old, metric), getattr(new, metric)
            rows.append(Row(metric, level, a, b, difference(a, b), apart(a, b)))
    return Comparison((before.name, after.name), before.confidence, rows)


def to_markdown(comparison: Comparison) -> str:
    """A table for a file, with a line under it that says how to read it."""
    first, second = comparison.names
    lines = [f"| level | measure | {first} | {second} | difference | apart |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in _cells(comparison)]
    return "\n".join([*lines, "", _legend(comparison), ""])


def to_rich(comparison: Comparison) -> Table:
    """The same table for a terminal."""
    table = Table(caption=_legend(comparison), caption_justify="left")
    first, second = comparison.names
    for title in ("level", "measure", first, second, "difference", "apart"):
        table.add_column(title)
    for row, cells in zip(comparison.rows, _cells(comparison), strict=True):
        table.add_row(*cells, style="bold" if row.apart else None, end_section=row.metric == METRICS[-1])
    return table


def report_to_rich(report: EvaluationReport) -> Table:
    """One evaluation for a terminal: a row a level, the pooled one first where there are several."""
    table = Table(caption=f"[{report.confidence:.0%} interval]", caption_justify="left")
    for title in ("level", *(TITLES[metric] for metric in METRICS)):
        table.add_column(title)
    levels = report.by_level.items()
    rows = [("all", report.overall)] if len(levels) > 1 else []
    for level, metrics in [*rows, *((str(level), metrics) for level, metrics in levels)]:
        shows = {metric: _turns if metric == "mean_turns" else _percent for metric in METRICS}
        table.add_row(level, *(_estimate(getattr(metrics, metric), shows[metric]) for metric in METRICS))
    return table


def _cells(comparison: Comparison) -> list[tuple[str, ...]]:
    rows = []
    for row in comparison.rows:
        show = _turns if row.metric == "mean_turns" else _percent
        rows.append(
            (
                "all" if row.level is None else str(row.level),
                TITLES[row.metric],
                _estimate(row.before, show),
                _estimate(row.after, show),
                _estimate(row.difference, lambda x, show=show: ("+" if x >= 0 else "") + show(x), n=False),
                "yes" if row.apart else "no",
            )
        )
    return rows


def _estimate(estimate: Estimate, show: Callable[[float], str], n: bool = True) -> str:
    if estimate.mean is None:
        return "–"
    text = show(estimate.mean)
    if estimate.low is not None and estimate.high is not None:
        text += f" [{show(estimate.low)}, {show(estimate.high)}]"
    return f"{text} n={estimate.n}" if n else text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _turns(turns: float) -> str:
    return f"{turns:.2f}"


def _legend(comparison: Comparison) -> str:
    return f"[{comparison.confidence:.0%} interval]; apart: the two intervals do not touch"
