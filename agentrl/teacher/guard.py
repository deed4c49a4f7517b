"""What every request passes before it is read: the key, the size of its body, and a last net under everything.

Pure ASGI, outside of FastAPI: a body that is too large is refused while it arrives, and an error that nobody foresaw is
a problem document too.  Keys are never logged, and compared in constant time.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.teacher.loopback import is_loopback
from agentrl.teacher.problems import Problem, internal_error

logger = logging.getLogger(__name__)

#: They say nothing of the model and cost a token at most; every other path asks for the key, whether it exists or not.
_OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})


class Guard:
    """Wraps an ASGI app.  `observe(path, status, seconds)` is told of every answer.

    Without keys only callers on this machine are answered.  /health and the OpenAPI pages need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: tuple[str, ...],
        body_bytes: int,
        observe: Callable[[str, int, float], None] = lambda path, status, seconds: None,
    ) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._body_bytes = body_bytes
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, self._counted(receive), sending)
        except Problem as problem:
            await problem.response()(scope, receive, sending)
        except ClientDisconnect:
            logger.info("%s %s: the caller hung up", scope["method"], scope["path"])
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await internal_error().response()(scope, receive, sending)
        finally:
            self._observe(route_path(scope), status, time.perf_counter() - started_s)

    def _admit(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if route_path(scope) not in _OPEN_PATHS:
            if self._keys:
                self._check_key(headers.get(b"authorization", b""))
            elif not is_loopback((scope.get("client") or ("",))[0]):
                detail = "this service has no API key and answers callers on its own machine only"
                raise Problem(403, "loopback-only", detail)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._body_bytes:
            raise self._too_large(int(length))

    def _check_key(self, authorization: bytes) -> None:
        scheme, _, given = authorization.partition(b" ")
        # Every key is compared, whichever fits: the time taken says nothing about them.
        fits = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if scheme.lower() != b"bearer" or not any(fits):
            detail = "send the header 'Authorization: Bearer KEY' with a key of this service"
            raise Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise self._too_large(received)
            return message

        return counting

    def _too_large(self, size: int) -> Problem:
        detail = f"the body has at least {size} bytes; this service reads up to {self._body_bytes}"
        return Problem(413, "body-too-large", detail, limit=self._body_bytes, value=size)


def route_path(scope: Scope) -> str:
    """The path below the prefix that the app is mounted at."""
    return scope["path"].removeprefix(scope.get("root_path", ""))
