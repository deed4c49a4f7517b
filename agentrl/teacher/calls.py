"""The service's routes from the caller's side: each is a `Call`, which says what to send and how its answer is read.

Both clients send the same calls; only how they wait differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from agentrl.teacher import wire
from agentrl.teacher.identity import TeacherIdentity
from agentrl.teacher.retrying import TeacherError
from agentrl.teacher.scorer import ItemScores, ScoreItem

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request's answer, and the bytes of both bodies."""

    scores: list[ItemScores]
    bytes_sent: int
    bytes_received: int


def json_call(path: str, request: BaseModel, answer: type[Answer]) -> Call[Answer]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return Call("POST", path, _reader(answer), request.model_dump_json().encode(), headers)


def score_call(items: Sequence[ScoreItem]) -> Call[Exchange]:
    body = wire.encode_request(items)

    def read(response: httpx.Response) -> Exchange:
        try:
            return Exchange(wire.decode_answer(response.content, items), len(body), len(response.content))
        except wire.WireError as error:
            raise TeacherError(f"{response.request.url}: {error}") from error

    headers = {"Content-Type": wire.MEDIA_TYPE, "Accept": wire.MEDIA_TYPE}
    return Call("POST", "/v1/score", read, body, headers)


def _reader(answer: type[Answer]) -> Callable[[httpx.Response], Answer]:
    def read(response: httpx.Response) -> Answer:
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise TeacherError(
                f"{response.request.url} answered with something else than {answer.__name__}: {error}"
            ) from error

    return read


MODEL = Call("GET", "/v1/model", _reader(TeacherIdentity))
