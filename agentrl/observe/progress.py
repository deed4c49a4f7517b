"""What a person sees while a run goes on: one live panel on a terminal, plain lines anywhere else.

The loop says what happens (`phase`, `episodes`, `step`, `evaluation`, `say`); nothing here is asked for an answer, and
no method blocks or raises for a record that lacks a figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.config import Job

PLAIN_EVERY_S = 30.0
"""seconds between two lines about one long phase, without a terminal"""
STEP_PHASES = ("plan", "collect", "guide", "learn", "sync")
"""told of at the end of their step, without a terminal"""
RECENT = 10
"""steps that the time left is judged by"""


class Estimated(Protocol):
    @property
    def mean(self) -> float | None: ...


class Progress:
    """A context manager.  `live` None: a panel when the console is a terminal and the variable CI is not set."""

    def __init__(
        self,
        job: Job,
        console: Console | None = None,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._phase, self._phase_began, self._last_line = "starting", clock(), clock()
        self._episodes: tuple[int, int] | None = None
        self._record: dict[str, Any] = {}
        self.closing_s = 0.0
        """seconds that the closing evaluation will take, as far as is known"""
        self._step_ends: list[float] = []
        wanted = self._console.is_terminal and not os.environ.get("CI") if live is None else live
        self._live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=4) if wanted else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def phase(self, name: str) -> None:
        """A phase has begun: plan, collect, guide, learn, sync, evaluate before, …"""
        self._phase, self._phase_began, self._episodes = name, self._clock(), None
        self._last_line = self._clock()
        if not self._live and name not in STEP_PHASES:
            self.say(name)

    def episodes(self, done: int, total: int) -> None:
        """`done` of the `total` episodes of this phase have ended."""
        self._episodes = (done, total)
        if not self._live and self._clock() - self._last_line >= PLAIN_EVERY_S:
            self._last_line = self._clock()
            self.say(f"{self._phase}: {done}/{total} episodes")

    def step(self, record: dict[str, Any]) -> None:
        """A step has ended; `record` is its line of metrics.jsonl."""
        self._record = record
        self._step_ends = [*self._step_ends[-RECENT:], self._clock()]
        if not self._live:
            self.say(" · ".join(self._facts()))
        for event in record.get("events") or ():
            self.say(f"step {self._done}: {event}")

    def evaluation(self, report: Any) -> None:
        """An evaluation has ended; `report` has a `name` and `overall` estimates (the evaluation room's report)."""
        parts = [f"{title} {show(getattr(report.overall, metric))}" for metric, title, show in _ESTIMATES]
        self.say(f"evaluation {report.name}: {', '.join(parts)}")

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(Text(text))

    def _facts(self) -> list[str]:
        record = self._record
        rollout, learner = record.get("rollout") or {}, record.get("learner") or {}
        facts = [f"step {self._done}/{self._job.steps}", f"level {record.get('level', '?')}"]
        levels = ", ".join(f"{level}: {_share(s)}" for level, s in (rollout.get("success_by_level") or {}).items())
        facts.append(f"success {_share(rollout.get('success'))}" + (f" ({levels})" if levels else ""))
        facts += [f"{name.removeprefix('loss/')} {value:.3g}" for name, value in _losses(learner)]
        if rollout.get("tokens_per_s"):
            facts.append(f"{rollout['tokens_per_s']:,.0f} tokens/s")
        if rollout.get("failed"):
            facts.append(f"{rollout['failed']} broke")
        facts.append(f"{_duration(self._left_s())} left")
        return facts

    @property
    def _done(self) -> int:
        """Steps done; records count them from 0."""
        return self._record.get("step", -1) + 1

    def _left_s(self) -> float | None:
        """Seconds to the last step at the pace of the latest ones, and those of the closing evaluation."""
        if len(self._step_ends) < 2:
            return None
        pace = (self._step_ends[-1] - self._step_ends[0]) / (len(self._step_ends) - 1)
        return pace * (self._job.steps - self._done) + self.closing_s

    def _panel(self) -> Group:
        head = Table.grid(padding=(0, 2))
        elapsed = _duration(self._clock() - self._phase_began)
        episodes = f"{self._episodes[0]}/{self._episodes[1]} episodes" if self._episodes else ""
        head.add_row(
            Text(self._job.name, style="bold"),
            Text(f"step {self._done}/{self._job.steps}"),
            Text(f"{self._phase} {episodes} {elapsed}", style="cyan"),
            Text(f"{_duration(self._left_s())} left", style="dim"),
        )
        bar = ProgressBar(total=self._job.steps, completed=self._done, width=60)
        if not self._record:
            return Group(head, bar)
        rollout, learner = self._record.get("rollout") or {}, self._record.get("learner") or {}
        facts = Table.grid(padding=(0, 2))
        by_level = rollout.get("success_by_level") or {}
        facts.add_row(
            "success",
            Text(f"{_share(rollout.get('success'))}   " + "   ".join(f"L{k} {_share(s)}" for k, s in by_level.items())),
        )
        losses = "   ".join(f"{name.removeprefix('loss/')} {value:.3g}" for name, value in _losses(learner))
        facts.add_row("losses", Text(losses or "–"))
        speed = rollout.get("tokens_per_s")
        facts.add_row("rollout", Text(f"{speed:,.0f} tokens/s" if speed else "–"))
        return Group(head, bar, facts)


def _losses(learner: dict[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in learner.items() if name.startswith("loss/") and value is not None]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _show_share(estimate: Estimated) -> str:
    return "–" if estimate.mean is None else f"{100 * estimate.mean:.1f} %"


def _show_turns(estimate: Estimated) -> str:
    return "–" if estimate.mean is None else f"{estimate.mean:.1f}"


_ESTIMATES = (
    ("success", "success", _show_share),
    ("error_recovery", "after an error", _show_share),
    ("mean_turns", "turns", _show_turns),
    ("tool_accuracy", "tool accuracy", _show_share),
)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
