"""`agentrl demo-models`: tokenizer, teacher and student, from nothing but the environments.

What is built is a function of the recipes below: the same machine gives the same bytes, and `SHA256SUMS` beside the
models says which.  Another kind of CPU rounds differently, and gives models as good with other bytes.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl.demo.dialogues import Domain, expert_texts
from agentrl.demo.pretrain import Recipe, pretrain
from agentrl.demo.tokenizer import train_tokenizer
from agentrl.rollout.chat import CHAT_TEMPLATE
from agentrl.types import Failure

SUMS = "SHA256SUMS"
DIALOGUES_PER_LEVEL = 100


@dataclass(frozen=True, slots=True)
class Pair:
    """A teacher and a student, each made in stages of which one goes on from the other, with one tokenizer.

    words: the domains whose dialogues the tokenizer is trained on.
    """

    words: tuple[Domain, ...]
    vocabulary: int
    teacher: tuple[Recipe, ...]
    student: tuple[Recipe, ...]


LARGE = partial(Recipe, hidden=192, layers=5, heads=3, intermediate=512)
MEDIUM = partial(Recipe, hidden=128, layers=4, heads=2, intermediate=344)
SMALL = partial(Recipe, hidden=128, layers=3, heads=2, intermediate=256)
TINY = partial(Recipe, hidden=64, layers=3, heads=1, intermediate=160)

#: what a weak student does: every sixth turn is not the expert's, half of those an expert's at the wrong time
ERRORS: dict[str, Any] = {"mistakes": 0.16, "blunders": 0.5}
#: the task, with the mistakes of an expert who now and then is replaced
TASK: dict[str, Any] = {"mistakes": 0.08, "decay_from": 0.45}
#: then to find one's way back, gently
RECOVERY: dict[str, Any] = {"muon_lr": 0.006, "adam_lr": 1e-3, "decay_from": 0.2, **ERRORS}
#: a student sees no mistake, and is satisfied sooner
IMITATION: dict[str, Any] = {"decay_from": 0.7, "raise_below": 0.15}

FOOD, FOOD_ZH = Domain("agentrl/FoodOrder-v0", "en"), Domain("agentrl/FoodOrder-v0", "zh")
QA, QA_ZH = Domain("agentrl/SearchCalcQA-v0", "en"), Domain("agentrl/SearchCalcQA-v0", "zh")
PAIRS = {
    # Level 4 alone asks for sizes: one word in a dialogue, too little for the running loss to show and for the ladder
    # to wait for.  Without a stage of their own both models guess them.
    "food_order": Pair(
        words=(FOOD, FOOD_ZH),
        vocabulary=1200,
        teacher=(
            LARGE(domains=(FOOD,), steps=1000, max_level=5, **TASK),
            LARGE(domains=(FOOD,), steps=350, start_level=5, max_level=5, **RECOVERY),
            LARGE(domains=(FOOD,), steps=400, start_level=4, max_level=4, decay_from=0.5, **ERRORS),
        ),
        student=(
            MEDIUM(domains=(FOOD,), steps=500, max_level=4, **IMITATION),
            MEDIUM(domains=(FOOD,), steps=150, start_level=4, max_level=4, **IMITATION),
        ),
    ),
    "food_order_zh": Pair(
        words=(FOOD_ZH,),
        vocabulary=700,
        teacher=(
            SMALL(domains=(FOOD_ZH,), steps=1200, max_level=3, mistakes_from_level=2, **TASK),
            SMALL(domains=(FOOD_ZH,), steps=300, start_level=3, max_level=3, mistakes_from_level=2, **RECOVERY),
        ),
        student=(TINY(domains=(FOOD_ZH,), steps=800, max_level=3, **IMITATION),),
    ),
    "search_calc_qa": Pair(
        words=(QA, QA_ZH),
        vocabulary=900,
        teacher=(
            SMALL(domains=(QA, QA_ZH), steps=2400, max_level=3, mistakes_from_level=2, **TASK),
            SMALL(domains=(QA, QA_ZH), steps=1200, start_level=3, max_level=3, **RECOVERY),
        ),
        student=(TINY(domains=(QA, QA_ZH), steps=600, max_level=3, **IMITATION),),
    ),
}


class ChecksumError(Failure):
    """The files are not the ones that the checksums were made of."""


class ModelsExist(Failure):
    """Models are never overwritten."""


def build(out: Path, console: Console, *, names: Sequence[str] = tuple(PAIRS), small: bool = False) -> None:
    """Write the pairs `names` into `out`, each as a folder of its own with `teacher/`, `student/` and `SHA256SUMS`.

    No folder appears before all of its pair is built.  `small` makes one-level models in about a minute each.
    Raises ModelsExist, before anything is built, where one of the folders is there already.
    """
    for name in names:
        if (out / name).exists():
            raise ModelsExist(f"{out / name} is there already: name another folder, or remove it first")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        pair = PAIRS[name]
        if small:
            tiny = partial(TINY, domains=pair.student[0].domains, max_level=1)
            pair = replace(pair, teacher=(tiny(steps=120),), student=(tiny(steps=60),))
        _build(name, pair, out, console)
        size = sum(p.stat().st_size for p in (out / name).rglob("*") if p.is_file())
        console.print(f"wrote {out / name}: {size / 1e6:.1f} MB")


def verify(folder: Path) -> None:
    """Raise ChecksumError naming the first file of a pair that is missing or differs from the pair's `SHA256SUMS`."""
    sums = folder / SUMS
    if not sums.exists():
        raise ChecksumError(f"{sums} is missing: build the models with `agentrl demo-models {folder.parent}`")
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


def _build(name: str, pair: Pair, out: Path, console: Console) -> None:
    with tempfile.TemporaryDirectory(dir=out, prefix=".demo-models-") as folder:
        tokenizer, made = Path(folder) / "tokenizer", Path(folder) / name
        console.print(f"{name}: reading expert dialogues for the tokenizer")
        texts = expert_texts(list(pair.words), DIALOGUES_PER_LEVEL)
        train_tokenizer(texts, pair.vocabulary, CHAT_TEMPLATE).save_pretrained(tokenizer)
        made.mkdir()
        for role, recipes in {"teacher": pair.teacher, "student": pair.student}.items():
            start = tokenizer
            for number, recipe in enumerate(recipes, 1):
                stage = Path(folder) / f"{role}-{number}"
                _pretrain(f"{name} {role} {number}/{len(recipes)}", recipe, start, stage, console)
                start = stage
            stages = [asdict(recipe) for recipe in recipes]
            (start / "recipe.json").write_text(json.dumps(stages, indent=1) + "\n", encoding="utf-8")
            start.rename(made / role)
        sums = "".join(f"{digest}  {path}\n" for path, digest in digests(made).items())
        (made / SUMS).write_text(sums, encoding="ascii")
        made.rename(out / name)


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
