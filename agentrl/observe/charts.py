"""The charts of a report, from the records of a run's steps.  Every figure copes with records that lack a key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

Record = Mapping[str, Any]

COLORS = ("#3465a4", "#d9822b", "#2f8f5b", "#b5385a", "#7a5ab5", "#8a6d3b", "#2a93a8", "#6b7280")
PROMOTION = "#9aa3ad"
#: groups of the learner's figures that share an axis; any other figure has a chart of its own
TOGETHER = {"loss": "losses", "grad_norm": "gradient norms", "lr": "learning rate"}


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    figure: go.Figure
    wide: bool = False


def charts(steps: Sequence[Record], evaluations: Iterable[Record] = ()) -> list[Chart]:
    """Every chart that there are figures for, the learning curve first."""
    found = [Chart("success", learning_curve(steps, evaluations), wide=True)]
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for name in sorted({name for record in steps for name in record.get("learner") or {}}):
        group, _, short = name.partition("/")
        alone = group not in TOGETHER
        groups.setdefault(name.replace("/", ": ") if alone else group, {})[short or name] = ("learner", name)
    found += [_lines(title, steps, groups.pop(group, {})) for group, title in TOGETHER.items()]
    found += [
        _lines("loss weights", steps, {name: ("weights", name) for name in ("kl", "value", "ppo")}),
        _lines("turns an episode", steps, {"turns": ("rollout", "turns")}),
        _lines("reward an episode", steps, {"reward": ("rollout", "reward")}),
        _lines("episodes cut short or broken", steps, {k: ("rollout", k) for k in ("truncated", "failed")}),
        _lines("generated tokens a second", steps, {"rollout": ("rollout", "tokens_per_s")}),
        time_by_phase(steps),
        _lines("parity gap, engine to learner", steps, {"gap": ("parity_gap",)}, log=True),
    ]
    found += [_lines(title, steps, paths) for title, paths in groups.items()]
    teacher = sorted({k for r in steps for k, v in (r.get("teacher") or {}).items() if isinstance(v, int | float)})
    found += [_lines("teacher: " + name, steps, {name: ("teacher", name)}) for name in teacher]
    return [chart for chart in found if chart.wide or chart.figure.data]


def learning_curve(steps: Sequence[Record], evaluations: Iterable[Record] = ()) -> go.Figure:
    """Training success overall and by level, promotions, and evaluations with their intervals.  x: steps done."""
    figure = _figure(height=380)
    xs, ys = series(steps, ("rollout", "success"))
    figure.add_scatter(x=xs, y=ys, name="training, all levels", mode="lines", line={"color": "#c3c9d1", "width": 1})
    figure.add_scatter(
        x=xs, y=smooth(ys), name="its running mean", mode="lines", line={"color": "#5b6470", "width": 2.5}
    )
    for i, level in enumerate(levels_of(steps)):
        xs, ys = series(steps, ("rollout", "success_by_level", level))
        color = COLORS[(i + 3) % len(COLORS)]
        figure.add_scatter(
            x=xs, y=smooth(ys), name=f"level {level}", mode="lines", line={"color": color, "width": 1.5, "dash": "dot"}
        )
    points = sorted(evaluations, key=lambda evaluation: evaluation["step"])
    for metric, color, symbol in (("success", COLORS[0], "circle"), ("error_recovery", COLORS[1], "diamond")):
        known = [(p["step"], p[metric]) for p in points if (p.get(metric) or {}).get("mean") is not None]
        if known:
            title = {"success": "held out", "error_recovery": "held out, after an injected error"}[metric]
            figure.add_scatter(
                x=[step for step, _ in known],
                y=[estimate["mean"] for _, estimate in known],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [_or(e["high"], e["mean"]) - e["mean"] for _, e in known],
                    "arrayminus": [e["mean"] - _or(e["low"], e["mean"]) for _, e in known],
                },
                name=title,
                mode="lines+markers",
                line={"color": color, "width": 1, "dash": "dash"},
                marker={"symbol": symbol, "size": 9},
            )
    for step, level in promotions(steps):
        figure.add_vline(
            x=step,
            line={"color": PROMOTION, "dash": "dash", "width": 1},
            annotation={"text": f"level {level}", "font": {"size": 11, "color": "#6b7280"}, "yref": "paper", "y": 1.06},
        )
    figure.update_yaxes(range=[-0.02, 1.02], tickformat=".0%")
    figure.update_xaxes(title={"text": "steps done", "standoff": 4})
    return figure


def time_by_phase(steps: Sequence[Record]) -> Chart:
    """Seconds of each phase, stacked."""
    figure = _figure()
    phases = list(dict.fromkeys(phase for record in steps for phase in record.get("phase_s") or {}))
    for i, phase in enumerate(phases):
        xs, ys = series(steps, ("phase_s", phase))
        figure.add_bar(x=xs, y=ys, name=phase, marker={"color": COLORS[i % len(COLORS)]})
    figure.update_layout(barmode="stack", bargap=0.05)
    figure.update_yaxes(title="s")
    return Chart("seconds by phase", figure)


def series(steps: Sequence[Record], path: Sequence[str]) -> tuple[list[int], list[float]]:
    """(steps done, figures) at a path of keys, where there is a finite number there."""
    points = [(record["step"] + 1, _at(record, path)) for record in steps]
    known = [(x, float(y)) for x, y in points if isinstance(y, int | float) and math.isfinite(y)]
    return [x for x, _ in known], [y for _, y in known]


def levels_of(steps: Sequence[Record]) -> list[str]:
    return sorted({level for r in steps for level in (r.get("rollout") or {}).get("success_by_level") or {}}, key=int)


def promotions(steps: Sequence[Record]) -> list[tuple[int, int]]:
    """(steps done when the level was reached, the level)."""
    return [(record["step"] + 1, record["promoted"]) for record in steps if record.get("promoted") is not None]


def smooth(ys: Sequence[float], span: int = 5) -> list[float]:
    """The mean of the last `span` figures at each place."""
    return [sum(window) / len(window) for window in (ys[max(0, i + 1 - span) : i + 1] for i in range(len(ys)))]


def _lines(title: str, steps: Sequence[Record], paths: Mapping[str, Sequence[str]], log: bool | None = None) -> Chart:
    figure = _figure()
    figures: list[float] = []
    for i, (name, path) in enumerate(paths.items()):
        xs, ys = series(steps, path)
        figures += ys
        if ys:
            figure.add_scatter(
                x=xs, y=ys, name=name, mode="lines", line={"color": COLORS[i % len(COLORS)], "width": 1.5}
            )
    positive = [y for y in figures if y > 0]
    if log and positive:
        figure.update_yaxes(type="log", exponentformat="power")
    figure.update_layout(showlegend=len(paths) > 1)
    return Chart(title, figure)


def _figure(height: int = 220) -> go.Figure:
    axis = {"gridcolor": "#eceff3", "zerolinecolor": "#dde2e8", "linecolor": "#dde2e8"}
    layout = go.Layout(
        template="none",  # a named one is copied and checked anew for every figure
        xaxis=axis,
        yaxis=axis,
        height=height,
        margin={"l": 48, "r": 12, "t": 24, "b": 32},
        font={"family": "system-ui, sans-serif", "size": 11},
        legend={"orientation": "h", "y": -0.18, "font": {"size": 11}},
        hovermode="x unified",
    )
    return go.Figure(layout=layout)


def _at(record: Any, path: Sequence[str]) -> Any:
    for key in path:
        record = (record or {}).get(key)
    return record


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
