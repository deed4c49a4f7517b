"""What a benchmark ran on, for the JSON beside its figures."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from agentrl.observe.summary import git_commit, versions


def machine() -> dict[str, Any]:
    """CPU model, cores, load before the run, commit and versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 1),
        "git_commit": git_commit(),
        "versions": versions(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
