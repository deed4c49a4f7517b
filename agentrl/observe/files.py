"""Files that are whole or not there, and values that JSON can hold.  For the other modules of this room."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once: a reader, or a crash, sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new files in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """`value` as strict JSON.

    Dataclasses, pydantic models and numpy become dicts, lists and numbers; NaN and infinities become None.
    """
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def not_finite(value: Any, where: str = "") -> list[str]:
    """The dotted places of the NaNs and infinities that `plain` would turn into None."""
    if isinstance(value, float | np.floating):
        return [] if math.isfinite(value) else [where]
    if isinstance(value, Mapping):
        return [name for key, item in value.items() for name in not_finite(item, f"{where}.{key}".lstrip("."))]
    return []
