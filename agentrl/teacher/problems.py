"""Problem documents (RFC 9457): how the service says that a request is wrong.

`Problem` is raised anywhere while a request is read or checked, and rendered once, at the edge of the app.  Every one
names what was asked for and the limit it broke; none echoes more of the request than a short value.
"""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError

MEDIA_TYPE = "application/problem+json"
_SHOWN_ERRORS = 8


class ProblemItem(BaseModel):
    pointer: str = Field(examples=["#/sequences/0/token_ids/3"])
    detail: str


class ProblemDocument(BaseModel):
    """The body of every answer that is not a success."""

    type: str = Field(examples=["urn:agentrl:teacher:out-of-vocabulary"])
    title: str
    status: int
    detail: str
    limit: int | float | None = None
    value: int | float | None = None
    errors: list[ProblemItem] = []


class Problem(Exception):
    """A request that is refused.  `kind` is the end of the document's type, in kebab case."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        limit: float | None = None,
        value: float | None = None,
        errors: list[ProblemItem] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = headers
        self.document = ProblemDocument(
            type=f"urn:agentrl:teacher:{kind}",
            title=kind.replace("-", " "),
            status=status,
            detail=detail,
            limit=limit,
            value=value,
            errors=errors or [],
        )

    def response(self) -> Response:
        body = self.document.model_dump_json(exclude_none=True)
        return Response(body, status_code=self.document.status, headers=self.headers, media_type=MEDIA_TYPE)


def invalid(error: ValidationError) -> Problem:
    """The problem of a body that is not what the schema says: 400 for what is no JSON at all, else 422."""
    found = error.errors(include_url=False, include_context=False)
    items = [
        ProblemItem(pointer="#/" + "/".join(str(part) for part in item["loc"]), detail=_with_value(item))
        for item in found[:_SHOWN_ERRORS]
    ]
    if found[0]["type"] == "json_invalid":
        return Problem(400, "not-json", found[0]["msg"])
    detail = f"{len(found)} things are wrong with the body; the first: {items[0].pointer}: {items[0].detail}"
    return Problem(422, "invalid-body", detail, errors=items)


def internal_error() -> Problem:
    """The one answer that is the service's own fault."""
    return Problem(500, "internal-error", "the teacher failed; its log says how. Asking again is safe")


def _with_value(item: Any) -> str:
    value = item["input"]
    if isinstance(value, str | int | float | bool | None) and item["type"] != "missing":
        shown = ascii(value) if not isinstance(value, int) or abs(value) < 2**64 else "a huge integer"
        return f"{item['msg']}, got {shown[:80]}"
    return item["msg"]
