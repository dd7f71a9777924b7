"""The OpenAI routes of one gateway: what each path answers, and with what."""

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from cluster.metrics.call_meter import CallMeter, CallOrigin
from cluster.openai.answer import AnswerWriter, GenerationAnswer, Patience
from cluster.openai.answer_writers import StreamWriter, WholeWriter, chat_body, completion_body
from cluster.openai.chat_request import ChatRequest
from cluster.openai.completion_request import CompletionRequest
from cluster.openai.event_frames import ChatFrames, CompletionFrames
from cluster.openai.gateway_services import GatewayServices
from cluster.openai.generation import Generation, GenerationPlan
from cluster.openai.request_body import (
    parse_chat_request,
    parse_completion_request,
    read_json_object,
)
from cluster.openai.request_planner import RequestPlanner, model_not_found
from cluster.openai.responses import (
    ChatCompletion,
    Completion,
    HealthReport,
    ModelCard,
    ModelList,
    ResponseIdentity,
    VersionReport,
)
from cluster.openai.routing_headers import with_routing_headers
from cluster.openai.sampling_fields import SamplingFields, StreamOptions
from cluster.openai.token_logprobs import ChatShape, CompletionShape, LogprobShape
from cluster.text.detokenizer import IncrementalDetokenizer


class OpenAIRoutes:
    """Binds the services to the paths; holds nothing that outlives a request."""

    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._planner = RequestPlanner(services)
        self._started_at = int(services.clock())
        self._patience = Patience(
            keep_alive_s=services.config.keep_alive_s,
            max_silence_s=services.config.max_silence_s,
        )

    def router(self) -> APIRouter:
        """Every route but the documentation."""
        router = APIRouter(redirect_slashes=False)
        add = router.add_api_route
        add("/v1/models", self.list_models, methods=["GET"], response_model=ModelList)
        # Names of models may hold slashes.
        add("/v1/models/{model_id:path}", self.show_model, response_model=ModelCard)
        add(
            "/v1/completions",
            self.complete,
            methods=["POST"],
            response_model=Completion,
            openapi_extra=_body_schema(CompletionRequest),
        )
        add(
            "/v1/chat/completions",
            self.chat,
            methods=["POST"],
            response_model=ChatCompletion,
            openapi_extra=_body_schema(ChatRequest),
        )
        add("/health", self.health, methods=["GET"], response_model=HealthReport)
        add("/version", self.version, methods=["GET"], response_model=VersionReport)
        add("/metrics", self.metrics, methods=["GET"], response_class=PlainTextResponse)
        return router

    async def list_models(self) -> Response:
        """The models served here."""
        return _json(ModelList("list", [self._card()]))

    async def show_model(self, model_id: str) -> Response:
        """One model by its name."""
        if model_id != self._services.served_name:
            raise model_not_found(model_id)
        return _json(self._card())

    async def health(self) -> Response:
        """Whether requests make progress: 200, or 503 with the problems."""
        health = self._services.dispatcher.health()
        problems = health.problems
        if not health.num_replicas:
            problems = (*problems, "No replica can take requests.")
        if problems:
            return _json(HealthReport("unhealthy", health.num_replicas, problems), status=503)
        return _json(HealthReport("ok", health.num_replicas, ()))

    async def version(self) -> Response:
        """The version of this server."""
        return _json(VersionReport(self._services.version))

    async def metrics(self, request: Request) -> Response:
        """The whole cluster's figures, in Prometheus's text format or OpenMetrics."""
        accept = request.headers.get("accept", "")
        body, content_type = await self._services.metrics.scrape(accept)
        return Response(body, headers={"Content-Type": content_type})

    async def complete(self, request: Request) -> Response:
        """Continue prompts."""
        arrived_at = self._services.metrics.clock()
        parsed = parse_completion_request(await self._read(request))
        identity = self._identity("cmpl-", request, parsed)
        plan = await self._planner.plan_completion(parsed, response_id=identity.id)
        plan = with_routing_headers(plan, request.headers, session_id=parsed.session_id)
        origin = CallOrigin(arrived_at, "text_completion", identity.id, _trace_headers(request))
        meter = self._services.metrics.meter(plan.requests, origin)
        shape = self._shape(parsed, CompletionShape)
        writer: AnswerWriter = WholeWriter(identity, completion_body, logprobs=shape)
        if parsed.stream:
            options = parsed.stream_options or StreamOptions()
            frames = CompletionFrames(
                identity, num_choices=plan.num_choices, has_usage=options.include_usage
            )
            writer = _stream_writer(frames, options, shape)
        return self._answer(parsed, plan, writer, meter)

    async def chat(self, request: Request) -> Response:
        """Reply to a conversation."""
        arrived_at = self._services.metrics.clock()
        parsed = parse_chat_request(await self._read(request))
        identity = self._identity("chatcmpl-", request, parsed)
        plan = await self._planner.plan_chat(parsed, response_id=identity.id)
        plan = with_routing_headers(plan, request.headers, session_id=parsed.session_id)
        origin = CallOrigin(arrived_at, "chat", identity.id, _trace_headers(request))
        meter = self._services.metrics.meter(plan.requests, origin)
        shape = self._shape(parsed, ChatShape)
        writer: AnswerWriter = WholeWriter(identity, chat_body, logprobs=shape)
        if parsed.stream:
            options = parsed.stream_options or StreamOptions()
            frames = ChatFrames(
                identity, num_choices=plan.num_choices, has_usage=options.include_usage
            )
            writer = _stream_writer(frames, options, shape)
        return self._answer(parsed, plan, writer, meter)

    async def _read(self, request: Request) -> dict[str, Any]:
        config = self._services.config
        return await read_json_object(
            request, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s
        )

    def _identity(self, prefix: str, request: Request, parsed: SamplingFields) -> ResponseIdentity:
        # A header is set by a proxy that traces the request, so it goes before the body's field.
        if parsed.request_id is not None and "x-request-id" not in request.headers:
            request.state.request_id = parsed.request_id
        return ResponseIdentity(
            id=prefix + request.state.request_id,
            created=int(self._services.clock()),
            model=self._services.served_name,
            system_fingerprint=self._services.system_fingerprint,
        )

    def _answer(
        self,
        parsed: SamplingFields,
        plan: GenerationPlan,
        writer: AnswerWriter,
        meter: CallMeter,
    ) -> GenerationAnswer:
        services = self._services

        def new_detokenizer(prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
            return IncrementalDetokenizer(
                services.tokenizer,
                prompt_token_ids=prompt_token_ids,
                skip_special_tokens=parsed.skip_special_tokens,
            )

        generation = Generation(
            plan,
            dispatcher=services.dispatcher,
            new_detokenizer=new_detokenizer,
            admission_timeout_s=services.config.admission_timeout_s,
            meter=meter,
        )
        return GenerationAnswer(
            generation,
            writer,
            request_id=plan.requests[0].request_id,
            patience=self._patience,
            meter=meter,
        )

    def _shape(
        self, parsed: SamplingFields, shape: type[ChatShape] | type[CompletionShape]
    ) -> LogprobShape | None:
        if parsed.num_logprobs is None:
            return None
        return shape(self._services.tokenizer.pieces.bytes_of)

    def _card(self) -> ModelCard:
        return ModelCard(
            id=self._services.served_name,
            object="model",
            created=self._started_at,
            owned_by="pagoda",
            root=self._services.model.name,
            parent=None,
            max_model_len=self._services.max_model_len,
        )


def _stream_writer(
    frames: ChatFrames | CompletionFrames, options: StreamOptions, shape: LogprobShape | None
) -> StreamWriter:
    return StreamWriter(
        frames,
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        logprobs=shape,
    )


def _trace_headers(request: Request) -> dict[str, str]:
    """The client's trace context, which a proxy may have added to."""
    names = ("traceparent", "tracestate")
    return {name: request.headers[name] for name in names if name in request.headers}


def _json(body: object, *, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")


def _body_schema(model: type[SamplingFields]) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }
