"""The report opens offline, shows dialogues as text, and can be made of any run folder."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from agentrl.observe.records import Record
from agentrl.observe.report import choose_tasks, write_report
from agentrl.observe.run_folder import RunFolder
from agentrl.observe.summary import write_summary
from agentrl.types import Injection, Promotion

EVIL = "<script>alert('x')</script> </pre> 好的 \ud800"


class Report:
    def __init__(self, name, trajectories):
        self.name, self.trajectories = name, trajectories

    def to_dict(self):
        estimate = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}
        return {"name": self.name, "success": estimate, "error_recovery": estimate, "by_level": {}}


class Page(HTMLParser):
    """Collects what a browser would run or load, and the text that it would show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts, self.loads, self.text = 0, [], ""
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._in = tag
        self.scripts += tag == "script"
        self.loads += [value for name, value in attrs if name in ("src", "href", "data", "action")]
        self.loads += [tag] * (tag in ("link", "iframe", "object", "embed", "base"))

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def folder(job_in, play, tmp_path_factory) -> RunFolder:
    folder = RunFolder.create(job_in(tmp_path_factory.mktemp("run")))
    folder.record_evaluation(0, Report("before", [play("a", success=False, guided=False, say=EVIL)]))
    folder.record_step(
        trajectories=[play(say=EVIL)],
        step=0,
        version=1,
        phase_s={"collect": 1.0, "learn": 2.0},
        teacher={},
        learner={"loss/kl": 0.5, "grad_norm/kl": 1.0},
        weights={"kl": 0.7, "value": 0.2, "ppo": 0.1},
        parity_gap=1e-6,
        promoted=Promotion(0, 2, "success <0.9>"),
        events=[],
    )
    folder.record_evaluation(1, Report("after", [play("a", success=True, guided=False)]))
    estimate = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    row = {"metric": "success", "level": None, "before": estimate, "after": estimate, "apart": False}
    comparison = {"names": ["before", "after"], "confidence": 0.95}
    write_summary(folder, {**comparison, "rows": [{**row, "difference": estimate}]})
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return Page((folder.path / "report.html").read_text(encoding="utf-8"))


def test_it_loads_nothing_and_forbids_loading(folder, page):
    assert page.loads == []
    assert "content=\"default-src 'none'; " in (folder.path / "report.html").read_text()


def test_what_a_model_wrote_is_shown_and_never_run(page):
    # plotly itself, then two scripts for each chart (plotly's settings and the chart)
    charts = 1 + 2 + 1 + 2 + 1 + 1 + 1 + 1
    assert page.scripts <= 1 + 2 * charts
    assert page.text.count("<script>alert('x')</script> </pre> 好的") == 2
    assert "level 2: success <0.9>" in page.text


def test_it_shows_each_turns_label_reward_parts_and_log_ratio_to_the_teacher(page):
    assert "premature_stop (first error)" in page.text
    assert "shaping +0.105" in page.text
    assert "log-ratio to the teacher 0.401" in page.text
    assert "value 0.75" in page.text


def test_it_shows_the_table_of_before_and_after(page):
    assert "50.0 % [40.0, 60.0]" in page.text
    assert "+50.0 % [+40.0, +60.0]" in page.text


def test_it_has_the_losses_the_gradient_norms_each_level_and_the_promotions(folder, page):
    assert "losses" in page.text
    assert "gradient norms" in page.text
    figures = (folder.path / "report.html").read_text(encoding="utf-8").replace(" ", "")
    assert '"name":"level1"' in figures, "the line of a level"
    assert '"text":"level2"' in figures, "the mark of a promotion"


def test_the_learning_curve_is_a_picture(folder):
    assert (folder.path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_has_just_begun_has_a_report(job):
    folder = RunFolder.create(job)
    write_report(folder)
    assert "0 of 50" in Page((folder.path / "report.html").read_text()).text


def test_records_without_most_keys_are_reported(job):
    folder = RunFolder.create(job)
    (folder.path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1, "rollout": null, "learner": {"x": null}}\n')
    write_report(folder)
    assert "2 of 50" in Page((folder.path / "report.html").read_text()).text


def test_the_dialogues_chosen_are_one_learnt_one_recovered_and_one_still_failed(play):
    def played(outcomes: dict[str, bool]) -> dict[str, Record]:
        records = {}
        for name, success in outcomes.items():
            trajectory = play(name, success=success)
            if name.startswith("injected"):
                trajectory.spec = replace(trajectory.spec, inject=Injection("x", 1))
            records[name] = Record(trajectory, [None, None])
        return records

    before = played({"always": True, "never": False, "learnt": False, "injected": False, "gone": False})
    after = played({"always": True, "never": False, "learnt": True, "injected": True})
    assert choose_tasks(before, after) == ["learnt", "injected", "never"]
    assert choose_tasks(before, after, n=9) == ["learnt", "injected", "never", "always"]
