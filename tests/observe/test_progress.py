"""What a person sees of a run that goes on."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from agentrl.observe.progress import Progress

RECORD = {
    "step": 0,
    "level": 2,
    "rollout": {"success": 0.41, "success_by_level": {"1": 0.6, "2": 0.35}, "tokens_per_s": 1710.4, "failed": 1},
    "learner": {"loss/kl": 0.2134, "loss/ppo": None, "lr/adam": 0.1},
    "events": ["level 3: success 0.81"],
}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=False)


def lines(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_without_a_terminal_each_step_and_each_event_is_a_line(job, console):
    clock = Clock()
    with Progress(job, console, clock=clock) as progress:
        progress.step(RECORD)
        clock.now = 10.0
        progress.step({**RECORD, "step": 1, "events": []})
    assert lines(console) == [
        "step 1/50 · level 2 · success 41 % (1: 60 %, 2: 35 %) · kl 0.213 · 1,710 tokens/s · 1 broke · ? left",
        "step 1: level 3: success 0.81",
        "step 2/50 · level 2 · success 41 % (1: 60 %, 2: 35 %) · kl 0.213 · 1,710 tokens/s · 1 broke · 8m00s left",
    ]


def test_the_time_left_ends_with_the_closing_evaluation(job, console):
    clock = Clock()
    progress = Progress(job, console, clock=clock)
    progress.closing_s = 90.0
    for clock.now, step in ((0.0, 48), (10.0, 49)):
        progress.step({"step": step})
    assert lines(console)[-1] == "step 50/50 · level ? · success – · 1m30s left"


def test_a_long_phase_says_now_and_then_how_far_it_is(job, console):
    clock = Clock()
    progress = Progress(job, console, clock=clock)
    progress.phase("evaluate before")
    for clock.now, done in ((10.0, 1), (31.0, 2), (40.0, 3), (62.0, 4)):
        progress.episodes(done, 9)
    assert lines(console) == ["evaluate before", "evaluate before: 2/9 episodes", "evaluate before: 4/9 episodes"]


def test_an_evaluation_is_a_line(job, console):
    def estimate(mean):
        return SimpleNamespace(mean=mean)

    overall = SimpleNamespace(
        success=estimate(0.5), error_recovery=estimate(None), mean_turns=estimate(6.25), tool_accuracy=estimate(0.875)
    )
    Progress(job, console).evaluation(SimpleNamespace(name="after", overall=overall))
    assert lines(console) == ["evaluation after: success 50.0 %, after an error –, turns 6.2, tool accuracy 87.5 %"]


def test_a_record_without_figures_is_shown_all_the_same(job, console):
    Progress(job, console).step({"step": 0})
    assert lines(console) == ["step 1/50 · level ? · success – · ? left"]


def test_text_with_brackets_is_not_taken_for_markup(job, console):
    Progress(job, console).say("worker [bold]3[/nope] died")
    assert lines(console) == ["worker [bold]3[/nope] died"]


def test_in_ci_there_is_no_live_panel_even_on_a_terminal(job, monkeypatch):
    monkeypatch.setenv("CI", "true")
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(job, console) as progress:
        progress.phase("collect")
    assert console.file.getvalue() == ""


def test_on_a_terminal_the_panel_shows_step_phase_success_and_losses(job, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Progress(job, console, clock=Clock()) as progress:
        progress.step(RECORD)
        progress.phase("collect")
        progress.episodes(7, 32)
    shown = console.file.getvalue()
    for part in ("demo", "step 1/50", "collect 7/32 episodes 0s", "L1 60 %", "kl 0.213", "1,710 tokens/s", "level 3"):
        assert part in shown
