"""Turns the bytes of a request into a checked request model, or into an error that names a field.

The size limit holds while the body is read, so that neither a missing nor a false Content-Length
gets more than one chunk beyond it into memory.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from cluster.openai.api_error import INVALID_REQUEST, ApiError, ErrorBody, bad_request
from cluster.openai.chat_request import ChatRequest
from cluster.openai.completion_request import CompletionRequest
from cluster.openai.parameter_support import (
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_MESSAGES,
    supported_part,
)
from cluster.openai.sampling_fields import SamplingFields

RequestModel = TypeVar("RequestModel", bound=SamplingFields)

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "value_error": "invalid_value",
}


async def read_json_object(request: Request, *, max_bytes: int, timeout_s: float) -> dict[str, Any]:
    """The body as a JSON object. ApiError 413 if it is too large, 408 if it comes too slowly,
    400 if it is not JSON or no object."""
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read_bounded(request, max_bytes=max_bytes)
    except TimeoutError:
        message = f"The request body did not arrive within {timeout_s:g} seconds."
        raise ApiError(408, ErrorBody(message, INVALID_REQUEST, code="request_timeout")) from None
    except ClientDisconnect:
        raise ApiError(400, ErrorBody("The client left.", INVALID_REQUEST)) from None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return value


async def _read_bounded(request: Request, *, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    message = f"The request body is larger than this server's limit of {max_bytes} bytes."
    return ApiError(413, ErrorBody(message, INVALID_REQUEST, code="request_too_large"))


def parse_chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """A checked chat request; ApiError 400 names the first field that is wrong."""
    kept = supported_part(fields, UNSUPPORTED_IN_CHAT)
    messages = kept.get("messages")
    if isinstance(messages, list):
        kept["messages"] = [
            supported_part(message, UNSUPPORTED_IN_MESSAGES, prefix=f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(messages)
        ]
    return _validate(ChatRequest, kept)


def parse_completion_request(fields: Mapping[str, Any]) -> CompletionRequest:
    """A checked completion request; ApiError 400 names the first field that is wrong."""
    return _validate(CompletionRequest, supported_part(fields, UNSUPPORTED_IN_COMPLETIONS))


def _validate(model: type[RequestModel], fields: dict[str, Any]) -> RequestModel:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _first_fault(error) from None


def _first_fault(error: ValidationError) -> ApiError:
    fault = error.errors(include_url=False, include_input=False)[0]
    name = _dotted(fault["loc"])
    kind = fault["type"]
    if kind == "missing":
        message = f"Missing required parameter: '{name}'."
    elif kind == "extra_forbidden":
        message = f"Unknown parameter: '{name}'."
    else:
        reason = fault["msg"].removeprefix("Value error, ")
        message = f"Invalid value for '{name}': {reason[:1].lower()}{reason[1:]}."
    default_code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return bad_request(message, param=name, code=_CODES.get(kind, default_code))


def _dotted(location: tuple[int | str, ...]) -> str:
    """('messages', 0, 'role') as a client would write it: messages[0].role."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name[:200]
