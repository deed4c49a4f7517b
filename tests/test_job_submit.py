"""`ray start --head`, `ray job submit`: the way that a job takes on a cluster, on a cluster of this test alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

REPO = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 120
JOB_TIMEOUT_S = 400

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard's URL of a head node with its own ports and folder, stopped by ending the processes it started.

    `ray stop` would end every Ray on the machine.  A node that busy cores keep from coming up within Ray's own 15 s
    is started again, twice.
    """
    log = tmp_path_factory.mktemp("ray") / "head.log"
    for attempt in range(3):
        folder = Path(f"/tmp/agentrl-head-{os.getpid()}-{attempt}")  # short: sockets' paths must stay under 108 bytes
        head, url = _start_head(folder, log)
        try:
            if _is_up(url, head):
                yield url
                return
        finally:
            _end(head)
            shutil.rmtree(folder, ignore_errors=True)
    pytest.fail(f"waited 3 × {START_TIMEOUT_S} s for a Ray node to be alive:\n{log.read_text()[-3000:]}")


def test_a_submitted_job_joins_the_cluster_it_was_submitted_to(dashboard: str) -> None:
    code = (
        "import agentrl.cluster as c, agentrl.config as g, ray; "
        "job = g.parse_job({'name': 'j', 'environments': [{}], 'student': {'path': 's'}, 'rollout': {'workers': 1}, "
        "'teacher': {'scorer': {'type': 'hf', 'path': 't'}, 'url': 'http://elsewhere'}})\n"
        "with c.connect(job), c.reserve(job) as p: "
        "print('joined', ray.cluster_resources()['CPU'], p.indices['learner'])"
    )
    done = _submit(dashboard, "python", "-c", code)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "joined 4.0 [0]" in done.stdout


def test_the_exit_code_of_a_job_comes_back(dashboard: str) -> None:
    done = _submit(dashboard, "python", "-c", "raise SystemExit(3)")
    assert done.returncode != 0
    assert "exit code 3" in done.stdout


def test_without_the_token_nothing_can_be_submitted(dashboard: str) -> None:
    done = _submit(dashboard, "python", "-c", "print('let in')", RAY_AUTH_MODE="disabled")
    assert done.returncode != 0
    assert "let in" not in done.stdout.splitlines()
    assert "authentication" in done.stdout.lower()


def test_a_training_job_runs_as_the_readme_says(dashboard: str, tmp_path: Path) -> None:
    settings = (
        "steps=1", f"runs_dir={tmp_path}", "rollout.episodes_per_step=4", "rollout.workers=1", "rollout.max_turns=4",
        "learner.minibatches=1", "evaluation.tasks=2", "evaluation.levels=[3]", "evaluation.max_turns=4",
    )  # fmt: skip
    done = _submit(dashboard, "agentrl", "train", "deploy/jobs/quickstart.yaml", *settings, working_dir=REPO)
    assert done.returncode == 0, done.stdout[-5000:]
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "summary.json").read_text())["policy_version"] == 1


def _submit(
    url: str, *entrypoint: str, working_dir: Path = REPO / "deploy", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [BIN / "ray", "job", "submit", "--address", url, "--working-dir", str(working_dir), "--", *entrypoint]
    return subprocess.run(
        command,
        cwd=REPO,
        env=_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )


def _environment() -> dict[str, str]:
    """What tests run with (tests/conftest.py: token, loopback), and `python` found where a user's venv would put it."""
    return os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_worker_register_timeout_seconds": "240"}


def _start_head(folder: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    ports = _free_ports(7)
    names = (
        "--port",
        "--dashboard-port",
        "--dashboard-agent-listen-port",
        "--dashboard-agent-grpc-port",
        "--runtime-env-agent-port",
        "--metrics-export-port",
        "--ray-client-server-port",
    )
    command = [
        BIN / "ray", "start", "--head", "--block", "--num-cpus=4", f"--temp-dir={folder}", "--dashboard-host=127.0.0.1",
        "--include-dashboard=true", f"--object-store-memory={256 * 2**20}",
        *(f"{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]  # fmt: skip
    with log.open("a") as out:
        head = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPO, env=_environment())
    return head, f"http://127.0.0.1:{ports[1]}"


def _is_up(url: str, head: subprocess.Popen[bytes]) -> bool:
    """Whether the dashboard comes to report a live node; its agents must be up too, or the node dies soon after."""
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    deadline = time.monotonic() + START_TIMEOUT_S
    alive_since = None
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=10) as client:
        while time.monotonic() < deadline and head.poll() is None:
            try:
                nodes = client.get(f"{url}/nodes?view=summary").json()["data"]["summary"]
                alive = [node["raylet"].get("state") == "ALIVE" for node in nodes] == [True]
            except (httpx.TransportError, ValueError, KeyError):
                alive = False
            alive_since = (alive_since or time.monotonic()) if alive else None
            if alive_since is not None and time.monotonic() - alive_since > 3:
                return True
            time.sleep(0.5)
    return False


def _end(head: subprocess.Popen[bytes]) -> None:
    tree = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    head.terminate()
    for process in tree:
        if process.is_running():
            process.terminate()
    _, left = psutil.wait_procs(tree, timeout=30)
    for process in left:
        process.kill()
    head.wait(timeout=30)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
