"""Turns a checked request into engine requests: prompts to tokens, limits, seeds, block names."""

import asyncio
from collections.abc import Sequence
from typing import Any

from cluster.openai.api_error import INVALID_REQUEST, ApiError, ErrorBody, bad_request
from cluster.openai.chat_request import ChatRequest
from cluster.openai.choice_text import TextRules
from cluster.openai.completion_request import CompletionRequest, Prompt
from cluster.openai.gateway_services import GatewayServices
from cluster.openai.generation import GenerationPlan
from cluster.openai.sampling_fields import SamplingFields
from cluster.text.chat_template import ChatTemplateError
from cluster.text.tokenizer import InvalidText
from kvstore.block_hash import block_hashes, root_hash
from replicas.request import EngineRequest

_DEFAULT_COMPLETION_TOKENS = 16
# Hashing more than this on the event loop would delay other streams by milliseconds.
_MAX_TOKENS_HASHED_INLINE = 16_384
# Arguments of ChatTemplate.render that a client must not set through its extra variables.
_TEMPLATE_ARGUMENTS = (
    "self",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
)

TokenIds = tuple[int, ...]


class RequestPlanner:
    """Refuses, with ApiError 400 or 404, whatever no replica could ever answer."""

    def __init__(self, services: GatewayServices) -> None:
        self._services = services

    async def plan_chat(self, request: ChatRequest, *, response_id: str) -> GenerationPlan:
        """One prompt, rendered by the model's chat template."""
        self._check_common(request)
        asked = request.max_completion_tokens
        if asked is None:
            asked = request.max_tokens
        elif request.max_tokens not in (None, asked):
            raise bad_request(
                "'max_tokens' and 'max_completion_tokens' differ; send one of them.",
                param="max_tokens",
            )
        text = self._render(request)
        prompt = await self._tokens_of(
            text, add_special_tokens=request.add_special_tokens, param="messages"
        )
        max_tokens = self._output_limit(len(prompt), asked, default=None, param="messages")
        return await self._plan(request, [prompt], [max_tokens], response_id=response_id)

    async def plan_completion(
        self, request: CompletionRequest, *, response_id: str
    ) -> GenerationPlan:
        """One engine request for each prompt."""
        self._check_common(request)
        self._check_best_of(request)
        num_prompts, most = len(request.prompt), self._services.config.max_prompts
        if num_prompts > most:
            raise bad_request(
                f"{num_prompts} prompts in one request: at most {most} are allowed.",
                param="prompt",
            )
        prompts = [
            await self._tokens_of(
                prompt, add_special_tokens=request.add_special_tokens, param="prompt"
            )
            for prompt in request.prompt
        ]
        limits = [
            self._output_limit(
                len(prompt), request.max_tokens, default=_DEFAULT_COMPLETION_TOKENS, param="prompt"
            )
            for prompt in prompts
        ]
        return await self._plan(request, prompts, limits, response_id=response_id)

    def _check_common(self, request: SamplingFields) -> None:
        services = self._services
        if request.model not in (None, services.served_name):
            raise model_not_found(request.model or "")
        if request.n > services.config.max_num_choices:
            raise bad_request(
                f"n={request.n}: at most {services.config.max_num_choices} choices are allowed.",
                param="n",
            )
        if len(request.stop) > services.config.max_stop_strings:
            raise bad_request(
                f"{len(request.stop)} stop strings: at most "
                f"{services.config.max_stop_strings} are allowed.",
                param="stop",
            )
        if request.stream_options is not None and not request.stream:
            raise bad_request(
                "'stream_options' is only allowed with 'stream': true.", param="stream_options"
            )
        self._check_token_ids(request.stop_token_ids, param="stop_token_ids")

    @staticmethod
    def _check_best_of(request: CompletionRequest) -> None:
        # best_of candidates of which n are shown: with n candidates, or the default, all are.
        if request.best_of not in (1, request.n):
            raise bad_request(
                "'best_of' is not supported by this server; leave it out or send the value of 'n'.",
                param="best_of",
                code="unsupported_parameter",
            )

    def _check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        vocab_size = self._services.model.vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise bad_request(
                f"'{param}' holds a token id outside of 0 to {vocab_size - 1}.", param=param
            )

    async def _tokens_of(self, prompt: Prompt, *, add_special_tokens: bool, param: str) -> TokenIds:
        if not isinstance(prompt, str):
            self._check_token_ids(prompt, param=param)
            return tuple(prompt)
        try:
            token_ids = await self._services.tokenizer.encode_async(
                prompt, add_special_tokens=add_special_tokens
            )
        except InvalidText as error:
            raise bad_request(f"Invalid value for '{param}': {error}.", param=param) from None
        return tuple(token_ids)

    def _render(self, request: ChatRequest) -> str:
        for name in _TEMPLATE_ARGUMENTS:
            if name in request.chat_template_kwargs:
                raise bad_request(
                    f"'{name}' cannot be set in 'chat_template_kwargs'.",
                    param="chat_template_kwargs",
                )
        messages: list[dict[str, Any]] = [
            message.model_dump(exclude_none=True) for message in request.messages
        ]
        try:
            return self._services.template.render(
                messages,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                **request.chat_template_kwargs,
            )
        except ChatTemplateError as error:
            raise bad_request(
                f"The chat could not be rendered: {error}.", param="messages"
            ) from None

    def _output_limit(
        self, num_prompt_tokens: int, asked: int | None, *, default: int | None, param: str
    ) -> int:
        """max_tokens of a prompt: as asked, or what fits, at most `default`."""
        services = self._services
        if num_prompt_tokens == 0:
            raise bad_request("The prompt is empty.", param=param)
        room = services.max_model_len - num_prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            raise self._context_error(num_prompt_tokens, asked, param=param)
        slots = services.num_blocks * services.block_size
        if num_prompt_tokens >= slots:
            raise bad_request(
                f"The prompt has {num_prompt_tokens} tokens and can never fit the KV cache, "
                f"which holds {slots}.",
                param=param,
                code="prompt_never_fits",
            )
        if asked is not None:
            return asked
        fitting = min(room, slots - num_prompt_tokens)
        return fitting if default is None else min(fitting, default)

    def _context_error(self, num_prompt_tokens: int, asked: int | None, *, param: str) -> ApiError:
        message = (
            f"This model's maximum context length is {self._services.max_model_len} tokens, but "
            f"the prompt has {num_prompt_tokens}"
        )
        if asked is None:
            message += ", which leaves no room for a reply."
        else:
            message += f" and {asked} output tokens were asked for: {num_prompt_tokens + asked}."
        return bad_request(message, param=param, code="context_length_exceeded")

    async def _plan(
        self,
        request: SamplingFields,
        prompts: Sequence[TokenIds],
        limits: Sequence[int],
        *,
        response_id: str,
    ) -> GenerationPlan:
        if request.min_tokens > min(limits):
            raise bad_request(
                f"min_tokens={request.min_tokens} is more than the {min(limits)} output tokens "
                "that are allowed.",
                param="min_tokens",
            )
        # Clients may send one id twice; what runs in an engine must have a name of its own.
        unique = f"{response_id}-{self._services.random_bits(32):08x}"
        engine_requests = [
            await self._engine_request(request, prompt, max_tokens, f"{unique}-{index}")
            for index, (prompt, max_tokens) in enumerate(zip(prompts, limits, strict=True))
        ]
        rules = TextRules(
            stop_strings=request.stop,
            stop_token_ids=frozenset(request.stop_token_ids),
            include_stop_str_in_output=request.include_stop_str_in_output,
            min_tokens=request.min_tokens,
        )
        return GenerationPlan(tuple(engine_requests), rules)

    async def _engine_request(
        self, request: SamplingFields, prompt: TokenIds, max_tokens: int, request_id: str
    ) -> EngineRequest:
        services = self._services
        root = root_hash(
            fingerprint=services.model.fingerprint,
            block_size=services.block_size,
            salt=(request.cache_salt or "").encode(),
        )
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=request.sampling_params(max_tokens=max_tokens, seed=services.random_bits(63)),
            root=root,
            block_hashes=await self._block_names(prompt, root),
            num_choices=request.n,
            priority=request.priority,
            queue_timeout_s=services.config.queue_timeout_s or None,
        )

    async def _block_names(self, prompt: TokenIds, root: bytes) -> tuple[bytes, ...]:
        def name_all() -> tuple[bytes, ...]:
            return tuple(block_hashes(prompt, block_size=self._services.block_size, root=root))

        if len(prompt) <= _MAX_TOKENS_HASHED_INLINE:
            return name_all()
        return await asyncio.to_thread(name_all)


def model_not_found(name: str) -> ApiError:
    """404 in OpenAI's words for a model that is not served here."""
    body = ErrorBody(
        f"The model '{name[:200]}' does not exist.", INVALID_REQUEST, "model", "model_not_found"
    )
    return ApiError(404, body)
