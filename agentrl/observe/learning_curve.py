"""The learning curve as a picture (`report.png`), for a README or a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from agentrl.observe.charts import COLORS, PROMOTION, Record, levels_of, promotions, series, smooth

HELD_OUT = (("success", "held out", COLORS[0], "o"), ("error_recovery", "held out, after an error", COLORS[1], "D"))


def draw_learning_curve(path: Path, steps: Sequence[Record], evaluations: Iterable[Record], title: str = "") -> None:
    """Success in training, overall and by level, promotions and evaluations with their intervals."""
    figure = Figure(figsize=(9, 4.2), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)  # no global state and no display
    axes = figure.add_subplot()
    xs, ys = series(steps, ("rollout", "success"))
    axes.plot(xs, ys, color="#c3c9d1", linewidth=0.8, label="training")
    axes.plot(xs, smooth(ys), color="#5b6470", linewidth=2, label="its running mean")
    for i, level in enumerate(levels_of(steps)):
        xs, ys = series(steps, ("rollout", "success_by_level", level))
        axes.plot(xs, smooth(ys), ":", color=COLORS[(i + 3) % len(COLORS)], linewidth=1.2, label=f"level {level}")
    points = sorted(evaluations, key=lambda evaluation: evaluation["step"])
    for metric, label, color, marker in HELD_OUT:
        known = [(p["step"], p[metric]) for p in points if (p.get(metric) or {}).get("mean") is not None]
        if not known:
            continue
        means = [estimate["mean"] for _, estimate in known]
        bars = [
            [
                mean - (estimate["low"] if estimate["low"] is not None else mean)
                for mean, (_, estimate) in zip(means, known, strict=True)
            ],
            [
                (estimate["high"] if estimate["high"] is not None else mean) - mean
                for mean, (_, estimate) in zip(means, known, strict=True)
            ],
        ]
        axes.errorbar(
            [step for step, _ in known],
            means,
            yerr=bars,
            fmt=f"--{marker}",
            color=color,
            linewidth=0.9,
            capsize=3,
            label=label,
        )
    for step, level in promotions(steps):
        axes.axvline(step, color=PROMOTION, linestyle="--", linewidth=0.8)
        axes.text(step, 1.03, f"level {level}", fontsize=8, color="#6b7280", ha="center")
    axes.set(ylim=(-0.02, 1.02), xlabel="steps done", ylabel="success")
    axes.set_title(title, pad=18)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path)
