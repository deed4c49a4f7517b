"""`report.html`: the whole run on one page that opens offline, and `report.png`, its learning curve.

Made from the run folder alone, at any time.  The page loads nothing (its content security policy forbids it), and every
text that a model, a user or a tool wrote goes through the template's escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from agentrl.config import dump_job
from agentrl.observe.charts import Chart, charts
from agentrl.observe.learning_curve import draw_learning_curve
from agentrl.observe.records import GuidanceSummary, Record
from agentrl.observe.run_folder import AFTER, BEFORE, RunFolder
from agentrl.observe.summary import build_summary
from agentrl.types import Trajectory, Turn

DIALOGUES = 3
"""tasks shown before and after, and guided episodes shown of the last step"""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One episode as the page shows it: each turn beside what the teacher thought of it."""

    title: str
    trajectory: Trajectory
    turns: list[tuple[Turn, GuidanceSummary | None]]


def write_report(folder: RunFolder) -> None:
    """Write `report.html` and `report.png` into a run folder, finished or not."""
    steps, evaluations = folder.steps(), folder.evaluations()
    summary = folder.read_json("summary.json") or build_summary(folder)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            job=folder.job,
            job_yaml=dump_job(folder.job),
            summary=summary,
            comparison=summary.get("comparison"),
            charts=[_html(chart, i) for i, chart in enumerate(charts(steps, evaluations.values()))],
            plotly_js=Markup(get_plotlyjs()),
            pairs=_pairs(_records(folder, f"evaluation-{BEFORE}"), _records(folder, f"evaluation-{AFTER}")),
            guided=_guided(folder),
            events=[(record["step"] + 1, event) for record in steps for event in record.get("events") or ()],
        )
    )
    folder.write_text("report.html", page)
    draw_learning_curve(folder.path / "report.png", steps, evaluations.values(), folder.job.name)


def choose_tasks(before: Mapping[str, Record], after: Mapping[str, Record], n: int = DIALOGUES) -> list[str]:
    """Episode ids worth reading: a clean task learnt, an error recovered from, a failure that stayed; then the rest."""
    both = [i for i in before if i in after and not before[i].trajectory.failure and not after[i].trajectory.failure]

    def won(played: Mapping[str, Record], i: str) -> bool:
        return played[i].trajectory.success

    def clean(i: str) -> bool:
        return after[i].trajectory.spec.inject is None

    learnt = [i for i in both if clean(i) and won(after, i) and not won(before, i)]
    recovered = [i for i in both if not clean(i) and won(after, i) and not won(before, i)]
    failed = [i for i in both if not won(after, i)]
    chosen = [ids[0] for ids in (learnt, recovered, failed) if ids]
    return [*chosen, *(i for i in both if i not in chosen)][:n]


def _pairs(before: Sequence[Record], after: Sequence[Record]) -> list[tuple[Dialogue, Dialogue | None]]:
    old, new = ({record.trajectory.spec.episode_id: record for record in records} for records in (before, after))
    if old and new:
        ids = choose_tasks(old, new)
        return [(_dialogue(BEFORE, old[i]), _dialogue(AFTER, new[i])) for i in ids]
    return [(_dialogue(BEFORE, record), None) for record in before[:DIALOGUES]]


def _guided(folder: RunFolder) -> list[Dialogue]:
    """Episodes of the last step that has any, which the teacher has seen."""
    for name in reversed(folder.trajectory_names()):
        if name.startswith("step-"):
            records = [r for r in folder.read_records(name) if any(r.summaries)]
            title = f"step {int(name.removeprefix('step-')) + 1}"
            return [_dialogue(title, record) for record in records[:DIALOGUES]]
    return []


def _records(folder: RunFolder, name: str) -> list[Record]:
    return folder.read_records(name) if name in folder.trajectory_names() else []


def _dialogue(title: str, record: Record) -> Dialogue:
    return Dialogue(title, record.trajectory, list(zip(record.trajectory.turns, record.summaries, strict=True)))


def _html(chart: Chart, index: int) -> dict[str, Any]:
    config = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    html = chart.figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"chart-{index}", config=config)
    return {"title": chart.title, "wide": chart.wide, "html": Markup(html)}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("agentrl.observe", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["estimate"] = _estimate
    environment.filters["percent"] = lambda share: "–" if share is None else f"{100 * share:.1f} %"
    environment.filters["figure"] = lambda value, digits=3: "–" if value is None else f"{value:,.{digits}g}"
    return environment


def _estimate(estimate: Mapping[str, Any], metric: str, signed: bool = False) -> str:
    """`48.0 % [41.2, 54.9]`, or `6.20 [5.9, 6.5]` for turns."""
    if estimate["mean"] is None:
        return "–"
    scale, digits, unit = (1, 2, "") if metric == "mean_turns" else (100, 1, " %")
    sign = "+" if signed else ""
    text = f"{estimate['mean'] * scale:{sign}.{digits}f}{unit}"
    if estimate["low"] is None or estimate["high"] is None:
        return text
    return text + f" [{estimate['low'] * scale:{sign}.{digits}f}, {estimate['high'] * scale:{sign}.{digits}f}]"
