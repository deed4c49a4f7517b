"""The HTTP service around one scorer: routes, content negotiation, problem documents.  No Ray in here.

`create_app` gives an ASGI app that any server can run; `app.py` runs it on Ray Serve, tests run it in process.
    POST /v1/score   token ids in, log-probabilities on a support and values out; JSON or safetensors, each way
    POST /v1/turn    messages in, a reply with its log-probabilities out
    GET  /v1/model   who this teacher is, for the handshake
    GET  /health     200 once a token has been through the model
    GET  /docs       the OpenAPI page
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from agentrl.teacher import wire
from agentrl.teacher.chat import play_turn
from agentrl.teacher.checks import items_from_binary, items_from_json
from agentrl.teacher.guard import Guard
from agentrl.teacher.identity import TeacherIdentity
from agentrl.teacher.problems import MEDIA_TYPE as PROBLEM_TYPE
from agentrl.teacher.problems import Problem, ProblemDocument, internal_error, invalid
from agentrl.teacher.schemas import (
    HealthResponse,
    Limits,
    ScoredTurn,
    ScoreRequest,
    ScoreResponse,
    SequenceScores,
    TurnRequest,
    TurnResponse,
)
from agentrl.teacher.scorer import ItemScores, ScoreItem, Scorer

JSON_TYPE = "application/json"
Model = TypeVar("Model", bound=BaseModel)
_SCHEMA_REF = "#/components/schemas/{model}"


def create_app(
    scorer: Scorer,
    *,
    keys: tuple[str, ...] = (),
    limits: Limits = Limits(),  # noqa: B008  frozen
    check_timeout_s: float = 60.0,
    observe: Callable[[str, int, float], None] = lambda path, status, seconds: None,
    count: Callable[[int, int], None] = lambda tokens, positions: None,
) -> Guard:
    """The service.  `observe(path, status, seconds)` hears of every answer, `count(tokens, positions)` of all work."""
    app = FastAPI(
        redoc_url=None, title="agentrl teacher", version="1", summary="Turn-level log-probabilities and values."
    )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]

    @app.exception_handler(Problem)
    async def _problem(request: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(HTTPException)
    async def _http_problem(request: Request, error: HTTPException) -> Response:
        kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
        detail = f"{request.method} {request.url.path[:200]}: {error.detail}; GET /docs lists what there is"
        return Problem(error.status_code, kind, detail, headers=dict(error.headers or {})).response()

    @app.exception_handler(Exception)
    async def _unforeseen(request: Request, error: Exception) -> Response:
        return internal_error().response()  # Guard, outside, logs it

    @app.get("/health", response_model=HealthResponse)
    async def health() -> Response:
        """200 once a token has been through the model, 503 when that takes too long or fails."""
        try:
            async with asyncio.timeout(check_timeout_s):
                await scorer.check()
        except Exception as error:
            what = f"no token came through the model within {check_timeout_s} s: {type(error).__name__}: {error}"
            raise Problem(503, "unhealthy", what, headers={"Retry-After": "5"}) from error
        return _json(HealthResponse(status="ok"))

    @app.get("/v1/model", response_model=TeacherIdentity, responses=_PROBLEMS)
    async def model() -> Response:
        """Who this teacher is: token→id map, special ids, chat template, context length, calibration of its values."""
        return _json(scorer.identity)

    @app.post("/v1/score", response_model=ScoreResponse, responses=_PROBLEMS, openapi_extra=_body(ScoreRequest, True))
    async def score(request: Request) -> Response:
        """Log q of a support at every token of the given turns, in one pass a sequence, and a value for every turn.

        Binary both ways with `Content-Type` and `Accept: application/vnd.safetensors`, see the documentation.
        """
        answer_type = _accepted(request.headers.get("accept", "*/*"))
        body_type = _body_type(request, (JSON_TYPE, wire.MEDIA_TYPE))
        body = await request.body()
        items = await run_in_threadpool(_read_items, body, body_type, limits, scorer.identity)
        scores = await scorer.score(items)
        count(sum(len(i.token_ids_T) for i in items), sum(len(s.tail_logprobs_n) for s in scores))
        if answer_type == wire.MEDIA_TYPE:
            content = await run_in_threadpool(wire.encode_answer, scores, [len(i.turns_K_2) for i in items])
            return Response(content, media_type=wire.MEDIA_TYPE)
        return await run_in_threadpool(lambda: _json(_score_response(items, scores)))

    @app.post("/v1/turn", response_model=TurnResponse, responses=_PROBLEMS, openapi_extra=_body(TurnRequest, False))
    async def turn(request: Request) -> Response:
        """The teacher's own next message in a dialogue, with its value, its log-probabilities and the near misses."""
        _body_type(request, (JSON_TYPE,))
        answer = await play_turn(scorer, _parse(TurnRequest, await request.body()), limits)
        count(answer.prompt_tokens + len(answer.tokens), len(answer.tokens))
        return _json(answer)

    return Guard(app, keys, limits.body_bytes, observe)


def _read_items(body: bytes, body_type: str, limits: Limits, identity: TeacherIdentity) -> list[ScoreItem]:
    if body_type == JSON_TYPE:
        return items_from_json(_parse(ScoreRequest, body), limits, identity)
    try:
        request = wire.decode_request(body)
    except wire.WireError as error:
        raise Problem(422, "invalid-body", str(error)[:500]) from error
    return items_from_binary(request, limits, identity)


def _parse(model: type[Model], body: bytes) -> Model:
    # Not FastAPI's own parsing: that answers a body with NaN in it with a 500.
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from error


def _score_response(items: list[ScoreItem], scores: list[ItemScores]) -> ScoreResponse:
    return ScoreResponse.model_construct(
        sequences=[SequenceScores.model_construct(turns=_turns(i, s)) for i, s in zip(items, scores, strict=True)]
    )


def _turns(item: ScoreItem, scores: ItemScores) -> list[ScoredTurn]:
    widths_n = (scores.support_ids_n_k >= 0).sum(1).tolist()
    ids, logprobs = scores.support_ids_n_k.tolist(), scores.support_logprobs_n_k.tolist()
    tails = scores.tail_logprobs_n.tolist()
    turns, at = [], 0
    for index, (start, end) in enumerate(item.turns_K_2.tolist()):
        rows = range(at, at + end - start)
        turns.append(
            ScoredTurn.model_construct(
                start=start,
                end=end,
                value=None if scores.values_K is None else float(scores.values_K[index]),
                support_ids=[ids[row][: widths_n[row]] for row in rows],
                support_logprobs=[logprobs[row][: widths_n[row]] for row in rows],
                tail_logprobs=[tails[row] for row in rows],
            )
        )
        at = rows.stop
    return turns


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type=JSON_TYPE)  # pydantic writes -inf as null


def _body_type(request: Request, known: tuple[str, ...]) -> str:
    given = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if given not in known:
        detail = f"Content-Type is {given[:80]!r}; this route reads {' or '.join(known)}"
        raise Problem(415, "unsupported-media-type", detail, headers={"Accept": ", ".join(known)})
    return given


def _accepted(accept: str) -> str:
    """The type that the caller likes best; JSON where it does not care (RFC 9110, 12.5.1)."""
    ranges = []
    for part in accept.lower().split(","):
        kind, *parameters = (field.strip() for field in part.split(";"))
        weights = [p[2:] for p in parameters if p.startswith("q=")]
        weight = weights[0] if weights else "1"
        ranges.append((kind, float(weight) if weight.replace(".", "", 1).isdecimal() and weight.isascii() else 1.0))
    best, best_weight = None, 0.0
    for offered in (JSON_TYPE, wire.MEDIA_TYPE):
        # The most specific range that covers the type decides on it.
        for pattern in (offered, "application/*", "*/*"):
            found = [weight for kind, weight in ranges if kind == pattern]
            if found:
                if found[0] > best_weight:
                    best, best_weight = offered, found[0]
                break
    if best is None:
        detail = f"Accept is {accept[:80]!r}; this route answers with {JSON_TYPE} or {wire.MEDIA_TYPE}"
        raise Problem(406, "not-acceptable", detail)
    return best


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "what is wrong with the request",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": _SCHEMA_REF.format(model=ProblemDocument.__name__)}}},
    }
}


def _body(model: type[BaseModel], binary: bool) -> dict[str, Any]:
    content: dict[str, Any] = {JSON_TYPE: {"schema": {"$ref": _SCHEMA_REF.format(model=model.__name__)}}}
    if binary:
        content[wire.MEDIA_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document plus the bodies, which it does not see because the routes parse them themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        models = [(model, "validation") for model in (ScoreRequest, TurnRequest, ProblemDocument)]
        _, schemas = models_json_schema(models, ref_template=_SCHEMA_REF)  # type: ignore[arg-type]
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        app.openapi_schema = document
    return app.openapi_schema
