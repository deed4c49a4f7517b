"""How to ask a teacher, from Python.  `TeacherClient` blocks, `AsyncTeacherClient` awaits; both speak binary.

    with TeacherClient("http://127.0.0.1:8000") as teacher:
        teacher.handshake(identity_of(tokenizer, context_length=2048, gamma=1.0))
        stats = teacher.guide(trajectories, top_k=64, temperature=1.0)

A client holds one connection pool and may be used from several threads.  Imports neither torch nor ray.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from agentrl.teacher.calls import MODEL, Call, Exchange, json_call, score_call
from agentrl.teacher.guiding import GuideStats, IdsPerPosition, guide_trajectories
from agentrl.teacher.identity import StudentIdentity, TeacherIdentity, differences, identity_of
from agentrl.teacher.loopback import is_loopback
from agentrl.teacher.retrying import (
    TeacherError,
    TeacherRefused,
    TeacherUnavailable,
    TryAgain,
    checked,
    policy,
    remaining,
)
from agentrl.teacher.schemas import ScoreRequest, ScoreResponse, TurnRequest, TurnResponse
from agentrl.teacher.scorer import ItemScores, ScoreItem
from agentrl.types import Trajectory

__all__ = [
    "AsyncTeacherClient",
    "GuideStats",
    "HandshakeError",
    "ItemScores",
    "ScoreItem",
    "StudentIdentity",
    "TeacherClient",
    "TeacherError",
    "TeacherIdentity",
    "TeacherRefused",
    "TeacherUnavailable",
    "identity_of",
]

T = TypeVar("T")


class HandshakeError(TeacherError):
    """Teacher and student do not speak the same tokens; `differences` says in what, one sentence each."""

    def __init__(self, url: str, found: list[str]) -> None:
        lines = "\n".join(f"  - {difference}" for difference in found)
        super().__init__(f"the teacher at {url} cannot teach this student:\n{lines}")
        self.differences = found


class _Client:
    """What both clients know.  Of an `api_key` with several, separated by commas as the service has them, the first."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._identity: TeacherIdentity | None = None
        key = (api_key or "").split(",")[0].strip()
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            # A proxy from the environment must not stand between this machine and itself.
            "trust_env": not is_loopback(httpx.URL(self.url).host),
        }

    def _policy(self, call: Call) -> dict[str, Any]:
        return policy(f"{call.method} {self.url}{call.path}", self.timeout_s)

    def _agree(self, teacher: TeacherIdentity, student: StudentIdentity) -> TeacherIdentity:
        found = differences(teacher, student)
        if found:
            raise HandshakeError(self.url, found)
        return teacher


class TeacherClient(_Client):
    """timeout_s: total deadline of one request, retries included.  transport: httpx's, for tests."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, api_key, timeout_s)
        self._http = httpx.Client(transport=transport, **self._options)

    def model(self) -> TeacherIdentity:
        """Who the teacher is; asked once."""
        if self._identity is None:
            self._identity = self._send(MODEL)
        return self._identity

    def handshake(self, student: StudentIdentity) -> TeacherIdentity:
        """The teacher's identity.  Raises HandshakeError listing every difference that would spoil the guidance."""
        self._identity = self._send(MODEL)
        return self._agree(self._identity, student)

    def score(self, items: Sequence[ScoreItem]) -> list[ItemScores]:
        """Scores of `items`, which share top_k and temperature; one request."""
        return self._exchange(items).scores

    def score_json(self, request: ScoreRequest) -> ScoreResponse:
        """The same question as JSON, as curl would send it."""
        return self._send(json_call("/v1/score", request, ScoreResponse))

    def turn(self, request: TurnRequest) -> TurnResponse:
        """The teacher's own next message in a dialogue."""
        return self._send(json_call("/v1/turn", request, TurnResponse))

    def guide(
        self,
        trajectories: Sequence[Trajectory],
        top_k: int,
        temperature: float,
        *,
        request_tokens: int = 32_768,
        in_flight: int = 4,
        ids_per_position: IdsPerPosition | None = None,
    ) -> GuideStats:
        """Fill each trajectory's `guidance`: a TurnGuidance for every turn with trainable tokens, None for the others.

        Requests hold up to `request_tokens` tokens, `in_flight` of them run at once.  `ids_per_position(trajectory,
        turn)` may name ids [n, m] to score as well (-1 pads); the reverse KL needs the student's.  The values of a
        teacher that is not calibrated are left out.  Raises TeacherError; `guidance` is then unchanged.
        """
        teacher = self.model()
        return guide_trajectories(
            self._exchange,
            teacher,
            trajectories,
            top_k=min(top_k, teacher.vocabulary),
            temperature=temperature,
            request_tokens=request_tokens,
            in_flight=in_flight,
            ids_per_position=ids_per_position,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, items: Sequence[ScoreItem]) -> Exchange:
        return self._send(score_call(items))

    def _send(self, call: Call[T]) -> T:
        deadline = time.monotonic() + self.timeout_s

        def attempt() -> T:
            try:
                response = self._http.request(
                    call.method, call.path, content=call.body, headers=call.headers, timeout=remaining(deadline)
                )
            except httpx.TransportError as error:
                raise TryAgain(f"{type(error).__name__}: {error}") from error
            return call.read(checked(response))

        return Retrying(**self._policy(call))(attempt)


class AsyncTeacherClient(_Client):
    """`TeacherClient` for coroutines."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, api_key, timeout_s)
        self._http = httpx.AsyncClient(transport=transport, **self._options)

    async def model(self) -> TeacherIdentity:
        if self._identity is None:
            self._identity = await self._send(MODEL)
        return self._identity

    async def handshake(self, student: StudentIdentity) -> TeacherIdentity:
        self._identity = await self._send(MODEL)
        return self._agree(self._identity, student)

    async def score(self, items: Sequence[ScoreItem]) -> list[ItemScores]:
        return (await self._send(score_call(items))).scores

    async def score_json(self, request: ScoreRequest) -> ScoreResponse:
        return await self._send(json_call("/v1/score", request, ScoreResponse))

    async def turn(self, request: TurnRequest) -> TurnResponse:
        return await self._send(json_call("/v1/turn", request, TurnResponse))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        deadline = time.monotonic() + self.timeout_s

        async def attempt() -> T:
            try:
                response = await self._http.request(
                    call.method, call.path, content=call.body, headers=call.headers, timeout=remaining(deadline)
                )
            except httpx.TransportError as error:
                raise TryAgain(f"{type(error).__name__}: {error}") from error
            return call.read(checked(response))

        return await AsyncRetrying(**self._policy(call))(attempt)
