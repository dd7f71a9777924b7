"""Every answer that is not a success, in the one error shape OpenAI clients understand."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from starlette.responses import Response

from cluster.errors import DispatchError, NoReplica, RequestRefused
from replicas.request import Refusal, RefusalReason

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body `{"error": {message, type, param, code}}` of survey 4.3, before it is bytes."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def encode(self) -> bytes:
        """The JSON of the whole body."""
        return orjson.dumps({"error": self})


class ApiError(Exception):
    """A request that is answered with `status` and `body`; raised anywhere below a route."""

    def __init__(
        self, status: int, body: ErrorBody, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {body.message}")
        self.status = status
        self.body = body
        self.headers = headers or {}

    def response(self) -> Response:
        """The whole HTTP answer."""
        return Response(
            self.body.encode(),
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/json",
        )


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the client must change the request before it sends it again."""
    return ApiError(400, ErrorBody(message, INVALID_REQUEST, param, code))


def unavailable(message: str, *, code: str, retry_after_s: float) -> ApiError:
    """503: nothing is wrong with the request; it may be sent again after `retry_after_s`."""
    return ApiError(503, ErrorBody(message, SERVER, code=code), _retry_after(retry_after_s))


def internal_error(message: str = "The server failed to answer this request.") -> ApiError:
    """500, with a message that tells nothing of the inside."""
    return ApiError(500, ErrorBody(message, SERVER, code="internal_error"))


def from_dispatch_error(error: DispatchError) -> ApiError:
    """What the cluster could not do, as the client shall hear it."""
    if isinstance(error, RequestRefused):
        return from_refusal(error.refusal)
    if isinstance(error, NoReplica):
        return unavailable(str(error), code="no_replica", retry_after_s=error.retry_after_s)
    return ApiError(500, ErrorBody(str(error), SERVER, code="replica_lost"))


def from_refusal(refusal: Refusal) -> ApiError:
    """A refusal: the cluster's fault (429, 503: come back later) or the request's (400)."""
    retry_after_s = 1.0 if refusal.retry_after_s is None else refusal.retry_after_s
    match refusal.reason:
        case RefusalReason.QUEUE_FULL | RefusalReason.SLO_UNMEETABLE:
            body = ErrorBody(refusal.message, RATE_LIMIT, code=refusal.reason.value)
            return ApiError(429, body, _retry_after(retry_after_s))
        case RefusalReason.EXPIRED:
            return unavailable(refusal.message, code="expired", retry_after_s=retry_after_s)
        case RefusalReason.PROMPT_TOO_LONG:
            return bad_request(refusal.message, code="context_length_exceeded")
        case RefusalReason.NEVER_FITS:
            return bad_request(refusal.message, code="prompt_never_fits")


def _retry_after(seconds: float) -> dict[str, str]:
    # The header counts whole seconds; 0 would invite an immediate retry.
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
