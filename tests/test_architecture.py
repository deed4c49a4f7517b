"""The arrows of the house: who may import whom, which file may load a heavy library, how long a file may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parent.parent
MAX_LINES = 400

#: modules of agentrl that every other one may import
VOCABULARY = ("agentrl.types", "agentrl.config", "agentrl.job_file", "agentrl.nearest_key")
#: roles: they import the vocabulary, the environments' contract and each other's nothing
ROLES = ("rollout", "teacher", "learner", "curriculum", "observe")
#: the storey above: may import every role, but not the commands
ABOVE = (
    "assembly",
    "cluster",
    "local_ray",
    "models",
    "parity",
    "train",
    "interrupt",
    "serving",
    "correction",
    "evaluation",
    "doctor",
    "demo",
)
#: the top: may import everything
TOP = ("cli", "__main__", "__init__")
#: what may be used from outside of its room
DOORS = ("agentrl.teacher.client", "agentrl.teacher.schemas")

#: heavy library -> the files that may import it (path from the root, `*` for a whole file name part)
CONFINED = {
    "vllm": ("agentrl/rollout/vllm_*.py",),
    "deepspeed": ("agentrl/learner/rank.py", "agentrl/learner/deepspeed_*.py"),
}


class Import(NamedTuple):
    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (REPO / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING as well; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        file = path.relative_to(REPO).as_posix()
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError(f"{file}:{node.lineno}: imports are absolute in this repository")
            yield from (Import(file, node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room(path: Path) -> str:
    """`rollout` for agentrl/rollout/pool.py, `cluster` for agentrl/cluster.py."""
    return path.relative_to(REPO / "agentrl").parts[0].removesuffix(".py")


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def forbidden(found: Import, own: str) -> bool:
    module = found.module
    if not within(module, ("agentrl",)) or within(module, (f"agentrl.{own}", *VOCABULARY)):
        return False
    if f"agentrl.{own}" in VOCABULARY:
        return True
    if own in ROLES:
        return not within(module, DOORS)
    return within(module, tuple(f"agentrl.{name}" for name in TOP))


def test_every_module_of_agentrl_has_a_place_in_the_house() -> None:
    rooms = {room(path) for path in sources("agentrl")}
    base = {name.removeprefix("agentrl.") for name in VOCABULARY}
    assert rooms <= {*ROLES, *ABOVE, *TOP, *base}


def test_no_role_imports_another_and_nothing_imports_what_stands_above_it() -> None:
    wrong = [
        str(found)
        for path in sources("agentrl")
        if (own := room(path)) not in TOP
        for found in imports(path)
        if forbidden(found, own)
    ]
    assert wrong == []


def test_the_rule_sees_a_forbidden_arrow_and_lets_the_doors_open() -> None:
    assert forbidden(Import("agentrl/learner/rank.py", 1, "agentrl.rollout.pool"), "learner")
    assert forbidden(Import("agentrl/teacher/app.py", 1, "agentrl.train"), "teacher")
    assert forbidden(Import("agentrl/types.py", 1, "agentrl.learner.losses"), "types")
    assert forbidden(Import("agentrl/train.py", 1, "agentrl.cli"), "train")
    assert not forbidden(Import("agentrl/rollout/pool.py", 1, "agentrl.teacher.client.TeacherClient"), "rollout")
    assert not forbidden(Import("agentrl/train.py", 1, "agentrl.rollout.pool"), "train")


def test_environments_import_nothing_of_the_machinery() -> None:
    machinery = ("agentrl", "ray", "torch", "vllm", "transformers", "deepspeed")
    wrong = [str(found) for path in sources("envs") for found in imports(path) if within(found.module, machinery)]
    assert wrong == []


@pytest.mark.parametrize("library", CONFINED)
def test_a_heavy_library_is_imported_only_in_the_files_named_for_it(library: str) -> None:
    wrong = [
        str(found)
        for path in sources("agentrl", "envs")
        for found in imports(path)
        if within(found.module, (library,)) and not any(Path(found.file).match(name) for name in CONFINED[library])
    ]
    assert wrong == []


@pytest.mark.parametrize("module", [*VOCABULARY, "agentrl.cli", "envs"])
def test_a_module_that_must_answer_at_once_loads_no_heavy_library(module: str) -> None:
    if not any((REPO / f"{module.replace('.', '/')}{end}").exists() for end in (".py", "/__init__.py", "/contract.py")):
        pytest.fail(f"{module} is gone; mend this test's list")
    code = (
        f"import sys, {module}; "
        "print(*sorted({'torch', 'ray', 'vllm', 'transformers', 'deepspeed', 'datasets'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_no_file_grows_past_one_owner() -> None:
    long = {
        path.relative_to(REPO).as_posix(): lines
        for path in sources("agentrl", "envs", "tests", "benchmarks")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}, f"files above {MAX_LINES} lines have two owners: split them"


def test_every_module_opens_with_its_contract() -> None:
    silent = [
        path.relative_to(REPO).as_posix()
        for path in sources("agentrl", "envs")
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_file_is_named_for_having_no_owner() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    found = [path.relative_to(REPO).as_posix() for path in sources("agentrl", "envs", "tests") if path.stem in vague]
    assert found == []
