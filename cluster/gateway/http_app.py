"""Assembles the gateway's HTTP app from its services: routes, edge, errors, documentation."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from cluster.live.live_routes import load_page, page_router
from cluster.openai.api_error import INVALID_REQUEST, ApiError, ErrorBody, bad_request
from cluster.openai.chat_request import ChatRequest
from cluster.openai.completion_request import CompletionRequest
from cluster.openai.docs_page import DOCS_PAGE
from cluster.openai.edge_middleware import OPEN_PATHS, ApiKeys, RequestIds
from cluster.openai.gateway_services import GatewayServices
from cluster.openai.routes import OpenAIRoutes

__all__ = ["GatewayServices", "build_http_app"]

_CODES = {404: "not_found", 405: "method_not_allowed"}


def build_http_app(services: GatewayServices) -> FastAPI:
    """The whole HTTP surface of one gateway; it keeps no state outside of `services`."""
    app = FastAPI(
        title="Pagoda",
        version=services.version,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    page = load_page()
    app.include_router(OpenAIRoutes(services).router())
    app.include_router(page_router(page, services.live))
    _add_docs(app)
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    # The last one added is the outermost.
    if services.config.api_keys:
        open_paths = OPEN_PATHS.union(page)
        app.add_middleware(ApiKeys, keys=services.config.api_keys, open_paths=open_paths)
    if services.config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=services.config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(
        RequestIds, new_id=services.new_id, count_response=services.metrics.count_response
    )
    return app


def _add_docs(app: FastAPI) -> None:
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE)

    async def openapi() -> dict[str, Any]:
        return _openapi_schema(app)

    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/openapi.json", openapi, include_in_schema=False)


def _openapi_schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = schema["components"]["schemas"]
    for model in (CompletionRequest, ChatRequest):
        # Bodies are read by hand (size limit, error shape), so FastAPI does not know their models.
        body = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(body.pop("$defs", {}))
        schemas[model.__name__] = body
    return schema


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path[:200]}"
    body = ErrorBody(message, INVALID_REQUEST, code=_CODES.get(error.status_code))
    return ApiError(error.status_code, body, error.headers).response()


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return bad_request("The request is not valid.").response()
