"""The weights of one policy version as a file that every engine of a node reads: written once, in shared memory.

Safetensors only: nothing that arrives over the network is unpickled into weights.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.rollout.engine import WeightError
from agentrl.types import PolicyVersion, tensor_digests

SHARED_MEMORY = Path("/dev/shm")


def write_weight_file(
    data: bytes | memoryview, version: PolicyVersion, digests: Mapping[str, str], *, name: str
) -> str:
    """Check safetensors bytes against their digests and write them to a new file that only this user reads; its path.

    Files of the same name that a sync left behind, because its worker died in it, are removed first.  Raises
    WeightError naming the first tensor that differs, or the folder that takes no file.
    """
    remove_weight_files(name)
    view = memoryview(data)
    different = first_difference(view, digests)
    if different is not None:
        raise WeightError(f"the weights of version {version} did not arrive as sent: tensor {different!r} differs")
    shared = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 2 * view.nbytes
    folder = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    try:
        handle, path = tempfile.mkstemp(prefix=f"{_prefix(name)}v{version}-", suffix=".safetensors", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(view)
    except OSError as error:
        remove_weight_files(name)
        raise WeightError(
            f"cannot write the weights of version {version} ({view.nbytes / 2**20:.0f} MiB) into {folder}: {error}; "
            "make room there, or point TMPDIR to a folder that has it"
        ) from error
    return path


def remove_weight_files(name: str) -> None:
    """Whatever syncs of that name have left on this node."""
    for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        for path in folder.glob(f"{_prefix(name)}*"):
            path.unlink(missing_ok=True)


def _prefix(name: str) -> str:
    return f"agentrl-{name}-"


def first_difference(data: bytes | memoryview, digests: Mapping[str, str]) -> str | None:
    """The first tensor, by name, that is missing, unexpected or different from its digest; None when all are equal."""
    try:
        found = tensor_digests(data)
    except ValueError as error:
        raise WeightError(f"weights arrived, but {error}") from error
    for name in sorted({*found, *digests}):
        if found.get(name) != digests.get(name):
            return name
    return None
