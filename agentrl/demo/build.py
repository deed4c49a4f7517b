"""`agentrl demo-models`: tokenizer, teacher and student, from nothing but the environments.

What is built is a function of the recipes below: the same machine gives the same bytes, and `SHA256SUMS` beside the
models says which.  Another kind of CPU rounds differently, and gives models as good with other bytes.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl.demo.dialogues import Domain, expert_texts
from agentrl.demo.pretrain import Recipe, pretrain
from agentrl.demo.tokenizer import train_tokenizer
from agentrl.rollout.chat import CHAT_TEMPLATE
from agentrl.types import Failure

SUMS = "SHA256SUMS"
VOCABULARY = 1200
DIALOGUES_PER_LEVEL = 100
ENGLISH, CHINESE = Domain("agentrl/FoodOrder-v0", "en"), Domain("agentrl/FoodOrder-v0", "zh")
#: the teacher learns the task, then to find its way back from what weak students do; one stage follows the other
TEACHER = Recipe(
    hidden=192,
    layers=5,
    heads=3,
    intermediate=512,
    domains=(ENGLISH,),
    steps=1000,
    max_level=5,
    mistakes=0.08,
    decay_from=0.45,
)
TEACHER_RECOVERY = replace(
    TEACHER, steps=350, start_level=5, muon_lr=0.006, adam_lr=1e-3, decay_from=0.2, mistakes=0.16, blunders=0.5
)
#: the student sees no mistake, and not enough of level 4
STUDENT = Recipe(
    hidden=128,
    layers=4,
    heads=2,
    intermediate=344,
    domains=(ENGLISH,),
    steps=500,
    max_level=4,
    decay_from=0.7,
    raise_below=0.15,
)


class ChecksumError(Failure):
    """The files are not the ones that the checksums were made of."""


def build(out: Path, console: Console, *, small: bool = False) -> None:
    """Write `teacher/`, `student/` and `SHA256SUMS` into `out`, which must not hold models yet.

    Nothing appears in `out` before everything is built.  `small` makes one-level models in about a minute.
    """
    if any((out / name).exists() for name in ("teacher", "student", SUMS)):
        raise FileExistsError(f"{out} already holds models: name another folder, or remove it first")
    stages = {"teacher": [TEACHER, TEACHER_RECOVERY], "student": [STUDENT]}
    if small:
        tiny = replace(STUDENT, hidden=64, layers=2, heads=1, intermediate=128, steps=60, max_level=1)
        stages = {"teacher": [replace(tiny, steps=120)], "student": [tiny]}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".demo-models-") as folder:
        made = Path(folder)
        console.print("tokenizer: reading expert dialogues")
        tokenizer = train_tokenizer(expert_texts([ENGLISH, CHINESE], DIALOGUES_PER_LEVEL), VOCABULARY, CHAT_TEMPLATE)
        tokenizer.save_pretrained(made / "tokenizer")
        for name, recipes in stages.items():
            start = made / "tokenizer"
            for number, recipe in enumerate(recipes, 1):
                stage = made / f"{name}-{number}"
                _pretrain(f"{name} {number}/{len(recipes)}", recipe, start, stage, console)
                start = stage
            start.rename(made / name)
        for left in [made / "tokenizer", *made.glob("*-[0-9]")]:
            shutil.rmtree(left)
        (made / SUMS).write_text(
            "".join(f"{digest}  {path}\n" for path, digest in digests(made).items()), encoding="ascii"
        )
        out.mkdir(exist_ok=True)
        for path in sorted(made.iterdir()):
            shutil.move(path, out / path.name)
    console.print(f"wrote {out}: {sum(p.stat().st_size for p in out.rglob('*') if p.is_file()) / 1e6:.1f} MB")


def verify(folder: Path) -> None:
    """Raise ChecksumError naming the first file that is missing or differs from the folder's `SHA256SUMS`."""
    sums = folder / SUMS
    if not sums.exists():
        raise ChecksumError(f"{sums} is missing: build the models with `agentrl demo-models {folder}`")
    for line in sums.read_text(encoding="ascii").splitlines():
        wanted, _, name = line.partition("  ")
        path = folder / name
        if not path.exists():
            raise ChecksumError(f"{path} is missing")
        if _sha256(path) != wanted:
            raise ChecksumError(f"{path} is not the file that {sums} was made of")


def digests(folder: Path) -> dict[str, str]:
    """Path below `folder` → SHA-256 of every file, in the order of their names."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != SUMS)
    return {p.relative_to(folder).as_posix(): _sha256(p) for p in files}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pretrain(name: str, recipe: Recipe, start: Path, out: Path, console: Console) -> None:
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps  level {task.fields[level]}  loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=recipe.steps, level=1, loss=0.0, speed=0.0)
        for step, figures in pretrain(recipe, start, out):
            bar.update(
                task,
                completed=step,
                level=figures["level"],
                loss=figures["loss"],
                speed=figures["tokens_per_s"],
            )
            if not console.is_terminal:
                console.print(f"{name} {step}/{recipe.steps} level {figures['level']} loss {figures['loss']:.3f}")
