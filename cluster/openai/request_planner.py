"""Turns a checked request into engine requests: prompts to tokens, limits, seeds, block names."""

import asyncio
from collections.abc import Sequence
from typing import Any

from cluster.openai.api_error import INVALID_REQUEST, ApiError, ErrorBody, bad_request
from cluster.openai.chat_request import ChatRequest
from cluster.openai.choice_text import TextRules
from cluster.openai.completion_request import CompletionRequest
from cluster.openai.gateway_services import GatewayServices
from cluster.openai.generation import GenerationPlan
from cluster.openai.sampling_fields import SamplingFields
from cluster.text.chat_template import ChatTemplateError
from cluster.text.tokenizer import LONG_TEXT_CHARACTERS, InvalidText
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
        prompts = await self._encode(
            [text], add_special_tokens=request.add_special_tokens, param="messages"
        )
        limits = [self._output_limit(len(prompts[0]), asked, default=None, param="messages")]
        return await self._plan(request, prompts, limits, response_id=response_id)

    async def plan_completion(
        self, request: CompletionRequest, *, response_id: str
    ) -> GenerationPlan:
        """One engine request for each prompt."""
        self._check_common(request)
        self._check_number_of_prompts(len(request.prompt), request.num_generated)
        prompts = await self._tokens_of(request)
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
        self._check_best_of(request)
        self._check_beam_search(request)
        self._check_logprobs(request)

    def _check_best_of(self, request: SamplingFields) -> None:
        best_of, most = request.num_generated, self._services.config.max_num_choices
        if best_of < request.n:
            raise bad_request(
                f"best_of={best_of} is less than n={request.n}, the choices to show.",
                param="best_of",
            )
        if best_of > most:
            raise bad_request(
                f"best_of={best_of}: at most {most} choices are allowed.", param="best_of"
            )
        if best_of > request.n and request.stream:
            raise bad_request(
                "'best_of' is not allowed with 'stream': true, since the best choices are known "
                "only at the end.",
                param="best_of",
            )

    def _check_beam_search(self, request: SamplingFields) -> None:
        if not request.use_beam_search:
            for param, is_neutral in (
                ("length_penalty", request.length_penalty == 1.0),
                ("early_stopping", not request.early_stopping),
            ):
                if not is_neutral:
                    message = f"'{param}' is only allowed with 'use_beam_search': true."
                    raise bad_request(message, param=param)
            return
        if request.stream:
            raise bad_request(
                "'use_beam_search' is not allowed with 'stream': true, since the best outputs are "
                "known only at the end.",
                param="use_beam_search",
            )
        for param, is_neutral in (
            ("temperature", request.temperature in (0.0, 1.0)),
            ("top_p", request.top_p == 1.0),
            ("top_k", request.top_k <= 0),
            ("min_p", request.min_p == 0.0),
        ):
            if not is_neutral:
                message = f"'{param}' has no meaning with 'use_beam_search'; leave it out."
                raise bad_request(message, param=param)

    def _check_logprobs(self, request: SamplingFields) -> None:
        most = self._services.config.max_logprobs
        if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
            raise bad_request(
                "'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs"
            )
        if (request.num_logprobs or 0) > most:
            param = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
            raise bad_request(
                f"{param}={request.num_logprobs}: at most {most} are allowed.", param=param
            )

    def _check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        vocab_size = self._services.model.vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise bad_request(
                f"'{param}' holds a token id outside of 0 to {vocab_size - 1}.", param=param
            )

    def _check_number_of_prompts(self, num_prompts: int, n: int) -> None:
        config = self._services.config
        if num_prompts > config.max_prompts:
            raise bad_request(
                f"{num_prompts} prompts in one request: at most {config.max_prompts} are allowed.",
                param="prompt",
            )
        most = max(config.max_prompts, config.max_num_choices)
        if num_prompts * n > most:
            raise bad_request(
                f"{num_prompts} prompts with n={n}: at most {most} choices in all are allowed.",
                param="n",
            )

    async def _tokens_of(self, request: CompletionRequest) -> list[TokenIds]:
        texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
        if texts:
            return await self._encode(
                texts, add_special_tokens=request.add_special_tokens, param="prompt"
            )
        token_lists = [prompt for prompt in request.prompt if not isinstance(prompt, str)]
        for token_ids in token_lists:
            self._check_token_ids(token_ids, param="prompt")
        return [tuple(token_ids) for token_ids in token_lists]

    async def _encode(
        self, texts: Sequence[str], *, add_special_tokens: bool, param: str
    ) -> list[TokenIds]:
        tokenizer = self._services.tokenizer
        try:
            if len(texts) == 1 or sum(map(len, texts)) <= LONG_TEXT_CHARACTERS:
                return [
                    tuple(await tokenizer.encode_async(text, add_special_tokens=add_special_tokens))
                    for text in texts
                ]
            encoded = await asyncio.to_thread(
                tokenizer.encode_batch, texts, add_special_tokens=add_special_tokens
            )
            return [tuple(token_ids) for token_ids in encoded]
        except InvalidText as error:
            raise bad_request(f"Invalid value for '{param}': {error}.", param=param) from None

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
        root = root_hash(
            fingerprint=self._services.model.fingerprint,
            block_size=self._services.block_size,
            salt=(request.cache_salt or "").encode(),
        )
        names = await self._block_names(prompts, root)
        engine_requests = tuple(
            EngineRequest(
                request_id=f"{unique}-{index}",
                prompt_token_ids=prompt,
                sampling=request.sampling_params(
                    max_tokens=limits[index], seed=self._services.random_bits(63)
                ),
                root=root,
                block_hashes=names[index],
                num_choices=request.num_generated,
                priority=request.priority,
                queue_timeout_s=self._services.config.queue_timeout_s or None,
            )
            for index, prompt in enumerate(prompts)
        )
        rules = TextRules(
            stop_strings=request.stop,
            stop_token_ids=frozenset(request.stop_token_ids),
            include_stop_str_in_output=request.include_stop_str_in_output,
            min_tokens=request.min_tokens,
        )
        return GenerationPlan(
            engine_requests, rules, num_shown=request.n, is_ranked=request.use_beam_search
        )

    async def _block_names(
        self, prompts: Sequence[TokenIds], root: bytes
    ) -> list[tuple[bytes, ...]]:
        def name_all() -> list[tuple[bytes, ...]]:
            size = self._services.block_size
            return [tuple(block_hashes(prompt, block_size=size, root=root)) for prompt in prompts]

        if sum(map(len, prompts)) <= _MAX_TOKENS_HASHED_INLINE:
            return name_all()
        return await asyncio.to_thread(name_all)


def model_not_found(name: str) -> ApiError:
    """404 in OpenAI's words for a model that is not served here."""
    body = ErrorBody(
        f"The model '{name[:200]}' does not exist.", INVALID_REQUEST, "model", "model_not_found"
    )
    return ApiError(404, body)
