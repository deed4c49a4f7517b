"""The commands, one thin function each.  Heavy imports stay inside, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentrl.config import Job, JobError, dump_job, load_job
from agentrl.types import Failure

app = typer.Typer(
    name="agentrl",
    help="Train multi-turn LLM agents by on-policy distillation and RL.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    pretty_exceptions_enable=False,
)
teacher_app = typer.Typer(name="teacher", help="The teacher as a service.", no_args_is_help=True)
app.add_typer(teacher_app)
console = Console(stderr=True, highlight=False)

JobFile = Annotated[Path, typer.Argument(help="job file (YAML)", metavar="JOB", show_default=False)]
JobOrRun = Annotated[
    Path,
    typer.Argument(
        help="job file, or a run folder, whose trained model is then meant", metavar="JOB|RUN", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="settings that replace the file's", metavar="[KEY=VALUE]...", show_default=False),
]


def _writable(path: Path | None) -> Path | None:
    """Said before the work whose result would be lost."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r} to write it to")
    return path


def _output(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, callback=_writable, dir_okay=False, writable=True, show_default=False)


def fail(message: str, code: int = 2) -> typer.Exit:
    """Print an error for people and give the exit to raise."""
    console.print(f"[bold red]error:[/] {_escape(message)}", soft_wrap=True)
    return typer.Exit(code)


@app.command(
    epilog="""
Examples:

* `agentrl train deploy/jobs/quickstart.yaml`
* `agentrl train deploy/jobs/quickstart.yaml seed=1 steps=20`
* `agentrl train deploy/jobs/qwen_a100.yaml --dry-run`
* `agentrl train --resume runs/quickstart-20261129-120000`
"""
)
def train(
    job_file: Annotated[Path | None, typer.Argument(help="job file (YAML)", metavar="JOB", show_default=False)] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="a run folder to continue", metavar="RUN", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="print the resolved job and what it reserves, try its environments, start nothing"
        ),
    ] = False,
) -> None:
    """Run a training job, and print the table of before and after."""
    with _failures(2):
        from agentrl.models import locate_models
        from agentrl.observe.run_folder import RunFolder
        from agentrl.rollout.catalogue import read_catalogue

        job = _job_to_train(job_file, overrides, resume)
        read_catalogue(job)
        if dry_run:
            _describe(job)
            return
        job = locate_models(job)
        folder = RunFolder.reopen(resume) if resume is not None else RunFolder.create(job)
    console.print(f"run folder: {folder.path}", soft_wrap=True)

    from agentrl.evaluation.table import to_rich
    from agentrl.interrupt import Interrupted
    from agentrl.observe.progress import Progress
    from agentrl.train import train as run

    go_on = f"continue with: agentrl train --resume {folder.path}"
    try:
        with Progress(job, console) as progress:
            comparison = run(job, folder, progress, resume=resume is not None)
    except Interrupted:
        console.print(f"stopped; {go_on}", soft_wrap=True)
        raise typer.Exit(130) from None
    except Failure as error:
        failed = fail(str(error), 1)
        if folder.checkpoints.completed():
            console.print(f"what was learned is kept; once that is mended, {go_on}", soft_wrap=True)
        raise failed from error
    Console(highlight=False).print(to_rich(comparison))
    console.print(f"report: {folder.path / 'report.html'}", soft_wrap=True)


@app.command(
    epilog="""
Examples:

* `agentrl evaluate deploy/jobs/quickstart.yaml`
* `agentrl evaluate runs/quickstart-20261129-120000 evaluation.tasks=500`
"""
)
def evaluate(
    job_file: JobOrRun,
    overrides: Overrides = None,
    json_out: Annotated[Path | None, _output("write the measures here, too", "--json")] = None,
) -> None:
    """Play the held-out suite with the student: success, turns, tool accuracy and recovery from injected errors."""
    import json

    from agentrl.evaluation.command import evaluate_job
    from agentrl.evaluation.table import report_to_rich
    from agentrl.observe.progress import Progress

    job = _load_job_or_run(job_file, overrides)
    with _failures(), Progress(job, console) as progress:
        report = evaluate_job(job, progress)
    Console(highlight=False).print(report_to_rich(report))
    if json_out is not None:
        json_out.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


@app.command(
    epilog="""
Examples:

* `agentrl rollout deploy/jobs/quickstart.yaml --episodes 4 --show 2`
* `agentrl rollout deploy/jobs/quickstart.yaml curriculum.start_level=5 --out episodes.jsonl.zst`
"""
)
def rollout(
    job_file: JobOrRun,
    overrides: Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="episodes to play")] = 8,
    show: Annotated[int, typer.Option(min=0, help="dialogues to print")] = 1,
    out: Annotated[Path | None, _output("write the trajectories here (.jsonl.zst)")] = None,
) -> None:
    """Play training tasks with the student, train nothing, and print dialogues."""
    from agentrl.evaluation.command import rollout_job
    from agentrl.observe.dialogue import to_text
    from agentrl.observe.progress import Progress

    job = _load_job_or_run(job_file, overrides)
    with _failures(), Progress(job, console) as progress:
        trajectories = rollout_job(job, progress, episodes=episodes, out=out)
    for trajectory in trajectories[:show]:
        typer.echo(to_text(trajectory))
    won = sum(t.success for t in trajectories)
    typer.echo(f"{won} of {len(trajectories)} episodes succeeded, {sum(len(t.turns) for t in trajectories)} turns")


@teacher_app.command(
    "serve",
    epilog="""
Examples:

* `agentrl teacher serve deploy/jobs/quickstart.yaml`
* `AGENTRL_TEACHER_API_KEY=… agentrl teacher serve deploy/jobs/quickstart.yaml teacher.host=0.0.0.0`
""",
)
def teacher_serve(job_file: JobFile, overrides: Overrides = None) -> None:
    """Serve a job's teacher over HTTP until Ctrl-C."""
    import signal

    from agentrl.interrupt import Interrupted, StopFlag
    from agentrl.serving import serving

    job = _load(job_file, overrides)
    with _failures(), serving(job) as url, StopFlag() as stop:
        console.print(f"the teacher answers at {url} (its page: {url}/docs); Ctrl-C stops it")
        with suppress(Interrupted), stop.may_interrupt():
            signal.pause()
    console.print("stopped")


@app.command(
    "demo-models",
    epilog="""
Examples:

* `agentrl demo-models built`  all of them: the better part of an hour on two cores
* `agentrl demo-models built --only food_order_zh`
* `agentrl demo-models models --check`  compares with the committed checksums
""",
)
def demo_models(
    out: Annotated[Path, typer.Argument(help="folder to write to", metavar="FOLDER")],
    only: Annotated[list[str] | None, typer.Option(help="a pair by its name; can be repeated")] = None,
    check: Annotated[bool, typer.Option("--check", help="only verify the folder's checksums")] = False,
    small: Annotated[bool, typer.Option("--small", help="models of a minute, to see that the recipes learn")] = False,
) -> None:
    """Build the models that the demo's jobs start from: teacher, student and tokenizer, pair by pair."""
    from agentrl.demo.build import PAIRS, build, verify

    names = only or list(PAIRS)
    if unknown := [name for name in names if name not in PAIRS]:
        raise fail(f"there is no pair {unknown[0]!r}: choose from {', '.join(PAIRS)}")
    with _failures():
        if not check:
            build(out, console, names=names, small=small)
            return
        for name in names:
            verify(out / name)
            console.print(f"{out / name}: every checksum matches")


@app.command(
    epilog="""
Examples:

* `agentrl doctor`  this machine
* `agentrl doctor deploy/jobs/quickstart.yaml`  and whether the job's student and teacher fit each other
"""
)
def doctor(
    job_file: Annotated[Path | None, typer.Argument(help="job file", metavar="[JOB]", show_default=False)] = None,
    overrides: Overrides = None,
) -> None:
    """Say what this machine can do, and what to do about what it can't."""
    from agentrl.doctor import render, run_doctor

    checks = run_doctor(_load(job_file, overrides) if job_file else None)
    Console(highlight=False).print(render(checks))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _job_to_train(job_file: Path | None, overrides: list[str] | None, resume: Path | None) -> Job:
    from agentrl.observe.run_folder import RunFolder

    if resume is None:
        if job_file is None:
            raise fail("name a job file, or a run with --resume")
        return load_job(job_file, overrides or ())
    if job_file is not None or overrides:
        raise fail("--resume takes the job from the run folder: leave JOB and KEY=VALUE out")
    return RunFolder.open(resume).job


def _describe(job: Job) -> None:
    """What a dry run says.  Models may lie on the cluster alone, so that one that isn't here is no error."""
    from agentrl.cluster import describe
    from agentrl.models import locate_models

    typer.echo(dump_job(job), nl=False)
    console.print(describe(job))
    try:
        locate_models(job)
    except JobError as error:
        console.print(f"[bold yellow]warning:[/] a run from here would fail: {_escape(str(error))}", soft_wrap=True)


def _load(path: Path, overrides: list[str] | None) -> Job:
    with _failures(2):
        return load_job(path, overrides or ())


@contextmanager
def _failures(code: int = 1) -> Iterator[None]:
    """Errors that say what was wrong and what to do are printed without a traceback; any other one is a defect."""
    try:
        yield
    except Failure as error:
        raise fail(str(error), code) from error


def _load_job_or_run(path: Path, overrides: list[str] | None) -> Job:
    if not path.is_dir():
        return _load(path, overrides)
    from agentrl.observe.run_folder import RunFolder

    with _failures(2):
        model = RunFolder.open(path).model
        job = load_job(path / "job.yaml", overrides or ())
    return job.model_copy(update={"student": job.student.model_copy(update={"path": str(model)})})


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def main() -> None:
    app()
