"""When a request to the teacher is tried again, how long it waits first, and when it gives up.

Scoring changes nothing, so that every failure which is not the request's own fault may be tried again: a connection
that broke, a full queue (429), a server's error (5xx).  Waits grow exponentially with jitter, never shorter than the
service's Retry-After, and all attempts together fit into one deadline.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from tenacity import RetryCallState, retry_if_exception_type, stop_before_delay, wait_random_exponential

from agentrl.types import Failure

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_backoff = wait_random_exponential(multiplier=0.2, max=10.0)


class TeacherError(Failure):
    """The teacher did not give what was asked for."""


class TeacherRefused(TeacherError):
    """The service says that the request is wrong; asking again would not help.  `problem` is its problem document."""

    def __init__(self, message: str, status: int, problem: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem


class TeacherUnavailable(TeacherError):
    """Nothing answered well within the deadline."""


class TryAgain(TeacherError):
    """One attempt failed; `wait_s` is what the service asked to wait."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def policy(what: str, timeout_s: float) -> dict[str, Any]:
    """Arguments for tenacity's Retrying and AsyncRetrying; `what` names the request in the last error."""

    def give_up(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        raise TeacherUnavailable(
            f"{what}: no good answer within {timeout_s:g} s and {state.attempt_number} attempts; the last: {error}"
        ) from error

    return {
        "retry": retry_if_exception_type(TryAgain),
        "wait": _wait_s,
        "stop": stop_before_delay(timeout_s),
        "retry_error_callback": give_up,
    }


def checked(response: httpx.Response) -> httpx.Response:
    """`response` when it is a success.  Raises TryAgain or TeacherRefused."""
    if response.is_success:
        return response
    problem = _problem(response)
    said = f"{response.request.method} {response.request.url} answered {response.status_code}: {problem['detail']}"
    if response.status_code in RETRIED_STATUS:
        raise TryAgain(said, _retry_after_s(response.headers.get("retry-after")))
    raise TeacherRefused(said, response.status_code, problem)


def remaining(deadline: float) -> httpx.Timeout:
    """What is left until `deadline` (time.monotonic()) for one attempt."""
    left_s = max(deadline - time.monotonic(), 0.01)
    return httpx.Timeout(left_s, connect=min(10.0, left_s))


def _wait_s(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked_s = error.wait_s if isinstance(error, TryAgain) else 0.0
    # The jitter comes on top: callers that were sent away together must not come back together.
    return asked_s + _backoff(state)


def _retry_after_s(header: str | None) -> float:
    """RFC 9110, 10.2.3: seconds, or a date.  0 for neither."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "detail" in document:
        return document
    return {"status": response.status_code, "detail": response.text[:300]}
