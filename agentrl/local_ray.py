"""A Ray of this process alone: on loopback, behind a token, and gone without a trace when the job ends.

`cluster.connect` calls this for a job that joins no cluster; nobody else does.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger(__name__)

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray resolves 127.0.0.1 to an outer address and listens on every interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A killed rollout worker takes its engine's process with it, which would hold the memory otherwise.
    "RAY_process_group_cleanup_enabled": "1",
}

#: How long the processes of a local cluster may take to end by themselves before they are killed.
SHUTDOWN_TIMEOUT_S = 20.0

#: Ray gives its node 30 s to come up, a number that cannot be set and that busy cores can miss.
START_ATTEMPTS = 3


@contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """Start Ray with `num_cpus` logical CPUs and connect this process to it; stop it with all that descends from it.

    Its logs are kept, and their place is logged, when the body raises.
    """
    from ray._private import ray_constants

    _set_token()
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False  # was read at Ray's import
    folder = Path(tempfile.mkdtemp(prefix="agentrl-ray-"))  # short: a socket's path must stay under 108 bytes
    finished = False
    try:
        _start(num_cpus, folder)
        yield
        finished = True
    finally:
        _stop()
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        if finished:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            logger.warning("Ray's logs of this run are kept in %s", folder)


def has_token() -> bool:
    """Whether Ray would find a token, be it named in the environment or in the home folder."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").exists()


def use_token_authentication() -> None:
    """Turn token authentication on, unless the environment already says which mode is meant."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if "ray" in sys.modules:  # it read mode and token at its import
        from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _set_token() -> None:
    if not has_token():
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_token_file())
    use_token_authentication()


@cache
def _token_file() -> Path:
    """A token of this process alone: Ray would write one into the home folder and then demand it of every cluster."""
    folder = Path(tempfile.mkdtemp(prefix="agentrl-token-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32), encoding="ascii")
    return path


def _start(num_cpus: int, folder: Path) -> None:
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                _temp_dir=str(folder),
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except Exception as error:
            if attempt == START_ATTEMPTS or "timed out during startup" not in str(error):
                raise
            logger.warning("Ray did not come up within 30 s (attempt %d of %d); trying again", attempt, START_ATTEMPTS)
            _stop()
        else:
            return


def _stop() -> None:
    """Shut Ray down and wait for all that descended from it, engine processes of killed actors included."""
    import psutil
    import ray

    processes = _ray_processes(psutil.Process())
    ray.shutdown()
    _, left = psutil.wait_procs(processes, timeout=SHUTDOWN_TIMEOUT_S)
    for process in left:
        logger.warning("killing process %d, which outlived Ray by %.0f s", process.pid, SHUTDOWN_TIMEOUT_S)
        process.kill()
    psutil.wait_procs(left, timeout=SHUTDOWN_TIMEOUT_S)


def _ray_processes(driver: psutil.Process) -> list[psutil.Process]:
    """The driver's children that are Ray's own, with all of their descendants.

    Other children of the driver (a helper's, a test's server) are not Ray's to stop.
    """
    import psutil

    found: list[psutil.Process] = []
    for child in driver.children():
        try:
            command = " ".join(child.cmdline())
            if "/ray/" in command or "ray::" in command:
                found += [child, *child.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found
