"""The edge of the app: an id for every answer, a key check for every caller, a body for faults.

Plain ASGI, because wrappers that copy each body chunk would cost every token of every stream.
"""

import hmac
import logging
import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.openai.answer_writers import send_error
from cluster.openai.api_error import AUTHENTICATION, ApiError, ErrorBody, internal_error

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/version"})

# Printable and without spaces: the id stands in headers and in log lines.
_USABLE_ID = re.compile(r"[!-~]{1,128}")


class RequestIds:
    """Keeps the caller's X-Request-Id, or makes one up, and sends it back.

    Routes read it from `request.state.request_id`, and may replace it there. A fault that no
    route answered becomes a 500 with a body, and a log line with the id. count_response: told the
    status of every answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        count_response: Callable[[int], None],
    ) -> None:
        self._app = app
        self._new_id = new_id
        self._count_response = count_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        state = scope.setdefault("state", {})
        state["request_id"] = given if _USABLE_ID.fullmatch(given) else self._new_id()
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._count_response(message["status"])
                message = {**message, "headers": list(message.get("headers", []))}
                MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request broken id=%s", state["request_id"])
            if has_started:
                raise
            await send_error(internal_error(), send_with_id)


class ApiKeys:
    """Lets a request pass if it bears one of the keys, or goes to an open path."""

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], open_paths: frozenset[str] = OPEN_PATHS
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; 401 in OpenAI's shape without a valid key."""
        if scope["type"] != "http" or _route_path(scope) in self._open_paths:
            await self._app(scope, receive, send)
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_key(token.strip()):
            await self._app(scope, receive, send)
            return
        await send_error(_unauthorised(is_missing=not token), send)

    def _is_key(self, token: str) -> bool:
        # ASGI hands header bytes on as they came; Headers reads them as Latin-1.
        given = token.encode("latin-1")
        # Every key is compared, each in constant time, so that timing tells nothing of them.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return any(matches)


def _route_path(scope: Scope) -> str:
    # Behind a prefix the path holds it too, as it does for the router.
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _unauthorised(*, is_missing: bool) -> ApiError:
    if is_missing:
        message = "No API key was given: send it as 'Authorization: Bearer KEY'."
    else:
        message = "The API key is not valid."
    body = ErrorBody(message, AUTHENTICATION, code="invalid_api_key")
    return ApiError(401, body, {"WWW-Authenticate": "Bearer"})
