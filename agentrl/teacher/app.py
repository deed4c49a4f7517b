"""The teacher as a Ray Serve application: `build` makes one from plain arguments.

    serve deploy deploy/serve/teacher.yaml          a YAML file's `args` are the arguments of `build`
    agentrl teacher serve JOB                        the same from a job file, through `server.service`

A replica holds the model.  Serve sends it up to ONGOING requests at a time, which share forward passes, keeps QUEUED
more at the proxy, and answers 429 with Retry-After beyond that.  A replica is healthy while tokens come through.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import BackpressureConfig
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Counter, Histogram

from agentrl.config import HfTeacher
from agentrl.teacher.api import create_app
from agentrl.teacher.guard import Guard
from agentrl.teacher.loopback import is_loopback
from agentrl.teacher.schemas import Limits
from agentrl.teacher.scorer import make_scorer
from agentrl.types import Failure

ONGOING, QUEUED, RETRY_AFTER_S = 32, 128, 1.0
CHECK_TIMEOUT_S = 60.0


class TeacherArgs(BaseModel):
    """What `build` takes: the parts of a job's `teacher` section that the replicas need.  Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scorer: HfTeacher
    host: str = "127.0.0.1"
    """where Serve's proxy listens; anything but loopback needs a key"""
    api_key_env: str = "AGENTRL_TEACHER_API_KEY"
    max_request_tokens: int = Field(default=262_144, ge=1)
    replicas: int = Field(default=1, ge=1)
    cpus_per_replica: float = Field(default=1.0, gt=0)
    gpus_per_replica: float = Field(default=0.0, ge=0)
    max_ongoing_requests: int = Field(default=ONGOING, ge=1)
    max_queued_requests: int = Field(default=QUEUED, ge=0)


class KeyMissingError(Failure):
    """A service that others could reach, without a key."""


def read_keys(host: str, api_key_env: str) -> tuple[str, ...]:
    """The bearer keys in environment variable `api_key_env`, separated by commas.

    Raises KeyMissingError when there is none and `host` can be reached from other machines.
    """
    keys = tuple(key.strip() for key in os.environ.get(api_key_env, "").split(",") if key.strip())
    if not keys and not is_loopback(host):
        raise KeyMissingError(
            f"the teacher would listen on {host}, where others reach it, and the environment variable {api_key_env} "
            "holds no API key: set it on every node before Ray starts there, or listen on 127.0.0.1"
        )
    return keys


@serve.deployment(
    name="Teacher",
    max_ongoing_requests=ONGOING,
    max_queued_requests=QUEUED,
    backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_AFTER_S),
    health_check_period_s=10.0,
    health_check_timeout_s=CHECK_TIMEOUT_S + 30.0,
    graceful_shutdown_timeout_s=30.0,
    max_constructor_retry_count=2,
    logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
)
@serve.ingress()
class Teacher:
    """One replica."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._args = TeacherArgs.model_validate(args)
        self._keys = read_keys(self._args.host, self._args.api_key_env)
        on_gpu = self._args.gpus_per_replica > 0
        # Ray sets OMP_NUM_THREADS from the CPUs booked.  The phases of a training step run one after another, so that a
        # replica at work has the machine's cores for itself and its sister replicas.
        threads = None if on_gpu else max(1, len(os.sched_getaffinity(0)) // self._args.replicas)
        self._scorer = make_scorer(self._args.scorer, device="cuda" if on_gpu else "cpu", threads=threads)
        self._metrics = _Metrics()

    def __serve_build_asgi_app__(self) -> Guard:
        return create_app(
            self._scorer,
            keys=self._keys,
            limits=Limits(request_tokens=self._args.max_request_tokens),
            check_timeout_s=CHECK_TIMEOUT_S,
            observe=self._metrics.observe,
            count=self._metrics.count,
        )

    async def check_health(self) -> None:
        await self._scorer.check()

    def __del__(self) -> None:
        if hasattr(self, "_scorer"):
            self._scorer.close()


class _Metrics:
    """Ray exports these to Prometheus beside Serve's own."""

    def __init__(self) -> None:
        self._requests = Counter("agentrl_teacher_requests", "Answers of the teacher.", ("path", "status"))
        self._seconds = Histogram(
            "agentrl_teacher_request_seconds",
            "Time to answer a request, queueing at the proxy excluded.",
            boundaries=[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0],
            tag_keys=("path",),
        )
        self._tokens = Counter("agentrl_teacher_tokens", "Tokens read by the teacher's model.")
        self._positions = Counter("agentrl_teacher_positions", "Tokens whose distribution was answered.")

    def observe(self, path: str, status: int, seconds: float) -> None:
        path = path if path in _PATHS else "other"  # a caller's made-up paths make no time series
        self._requests.inc(tags={"path": path, "status": str(status)})
        self._seconds.observe(max(seconds, 1e-6), tags={"path": path})

    def count(self, tokens: int, positions: int) -> None:
        self._tokens.inc(tokens)
        self._positions.inc(positions)


_PATHS = frozenset({"/v1/score", "/v1/turn", "/v1/model", "/health"})


def build(args: dict[str, Any]) -> serve.Application:
    """The application for `serve run`, `serve deploy` and `server.service`.

    Raises pydantic's ValidationError for arguments that are not TeacherArgs.
    """
    checked = TeacherArgs.model_validate(args)
    deployment = Teacher.options(
        autoscaling_config={"min_replicas": checked.replicas, "max_replicas": checked.replicas},
        max_ongoing_requests=checked.max_ongoing_requests,
        max_queued_requests=checked.max_queued_requests,
        ray_actor_options={"num_cpus": checked.cpus_per_replica, "num_gpus": checked.gpus_per_replica},
    )
    return deployment.bind(checked.model_dump(mode="json"))
