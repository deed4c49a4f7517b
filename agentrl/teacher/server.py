"""Start and stop the teacher on the Ray that this process is connected to.

The training job and `agentrl teacher serve` call this; whoever already has a service sets `teacher.url` instead.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.schema import ApplicationStatus

from agentrl.config import TeacherService
from agentrl.teacher.app import TeacherArgs, build, read_keys
from agentrl.types import Failure

logger = logging.getLogger(__name__)

APP_NAME = "teacher"

#: Serve kills a proxy that is not ready after three checks of 5 s: on busy cores its imports alone take longer.
_PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}


class TeacherStartError(Failure):
    """The service did not come up: what was waited for, for how long, and what Serve says."""


class TeacherStopError(Failure):
    """Serve did not take the service down in time."""


@contextmanager
def service(config: TeacherService, *, ends_with_ray: bool = False, timeout_s: float = 300.0) -> Iterator[str]:
    """Deploy the teacher, yield its URL once it answers, and take it down after the block.  Ray must be initialised.

    Port 0 picks a free one.  A start that fails or is interrupted takes the teacher down, too.

    ends_with_ray: this Ray is about to be stopped, and Serve with it, so the service is not taken down by itself.

    Raises KeyMissingError for a host that others reach without a key, TeacherStartError when the port is taken, the
    model does not load or nothing answers within `timeout_s`.
    """
    read_keys(config.host, config.api_key_env)
    port = _usable_port(config)
    url = f"http://{_reachable(config.host)}:{port}"
    try:
        _deploy(config, port, url, timeout_s)
        yield url
    finally:
        if not ends_with_ray:
            _stop()


def _deploy(config: TeacherService, port: int, url: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    args = TeacherArgs(
        scorer=config.scorer,
        host=config.host,
        api_key_env=config.api_key_env,
        max_request_tokens=config.max_request_tokens,
        replicas=config.replicas,
        cpus_per_replica=config.cpus_per_replica,
        gpus_per_replica=config.gpus_per_replica,
    )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells the driver of every step it takes
    _start_serve(config, port)
    serve.run_many(
        [serve.RunTarget(target=build(args.model_dump(mode="json")), name=APP_NAME, route_prefix="/")],
        wait_for_applications_running=False,
    )
    _wait_running(deadline, timeout_s)
    _wait_answering(url, deadline, timeout_s)


def _stop(timeout_s: float = 60.0) -> None:
    """Serve goes with the teacher unless other applications run there.  Raises TeacherStopError."""
    serve.delete(APP_NAME, _blocking=False)
    deadline = time.monotonic() + timeout_s
    while APP_NAME in serve.status().applications:
        if time.monotonic() > deadline:
            raise TeacherStopError(
                f"waited {timeout_s:g} s for Ray Serve to delete the application {APP_NAME!r}; `serve shutdown` ends it"
            )
        time.sleep(0.1)
    if not serve.status().applications:
        serve.shutdown()


def _start_serve(config: TeacherService, port: int) -> None:
    """One proxy, on the head: with loopback that is where the job runs, and no second node can find its port taken."""
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": config.host, "port": port, "request_timeout_s": config.timeout_s},
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
            controller_options={"runtime_env": {"env_vars": _PATIENCE}},
        )
    except (TimeoutError, RayActorError) as error:
        # Serve waits 60 s for its proxy, a number that cannot be set, and its controller starts another one if the
        # first dies.  Whether one comes up in time is seen when the service is asked for its health.
        logger.warning("Serve's proxy is late, waiting on: %s", error)


def _wait_running(deadline: float, timeout_s: float) -> None:
    while True:
        app = serve.status().applications.get(APP_NAME)
        if app is not None and app.status is ApplicationStatus.RUNNING:
            return
        said = (
            ""
            if app is None
            else "; ".join(
                filter(
                    None, [app.message, *(f"{name}: {d.message}" for name, d in app.deployments.items() if d.message)]
                )
            )
        )
        if app is not None and app.status is ApplicationStatus.DEPLOY_FAILED:
            raise TeacherStartError(f"the teacher could not start: {said}")
        if time.monotonic() > deadline:
            state = "no state" if app is None else app.status
            raise TeacherStartError(
                f"waited {timeout_s} s for the teacher's replicas to load their model; Serve reports {state}: {said}"
            )
        time.sleep(0.2)


def _wait_answering(url: str, deadline: float, timeout_s: float) -> None:
    last = "nothing was tried"
    while time.monotonic() < deadline:
        try:
            answer = httpx.get(f"{url}/health", timeout=10.0, trust_env=False)
            if answer.status_code == httpx.codes.OK and answer.json() == {"status": "ok"}:
                return
            last = f"status {answer.status_code}: {answer.text[:200]}"
        except (httpx.TransportError, ValueError) as error:
            last = f"{type(error).__name__}: {error}"
        time.sleep(0.2)
    raise TeacherStartError(
        f"waited {timeout_s} s for {url}/health to answer (last: {last}).  If Serve was running here before, it "
        "listens where it was first told to: use its address in teacher.url, or stop it"
    )


def _usable_port(config: TeacherService) -> int:
    """The configured port, or a free one for 0.  Raises TeacherStartError when another program has it."""
    with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            raise TeacherStartError(
                f"cannot listen on {config.host}:{config.port} ({error.strerror}): choose another teacher.port, 0 "
                "picks a free one, or set teacher.url if a teacher is running there"
            ) from error
        return probe.getsockname()[1]


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostbyname(socket.gethostname())
    return f"[{host}]" if ":" in host else host
