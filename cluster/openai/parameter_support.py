"""Says of each parameter we know but cannot honour yet at which value it changes nothing.

A parameter is honoured, or refused by name, never ignored. Clients and frameworks send many
parameters at their neutral value (null, 0 for a penalty, an empty list of tools), so those pass.
"""

from collections.abc import Mapping
from typing import Any

from cluster.openai.api_error import ApiError, bad_request

_OFF: tuple[Any, ...] = (False,)
_EMPTY_LIST: tuple[Any, ...] = ([],)
_EMPTY_MAP: tuple[Any, ...] = ({},)
_NOTHING: tuple[Any, ...] = ()

# Name to the values, beside null, at which the parameter has no effect.
_UNSUPPORTED_EVERYWHERE: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": _EMPTY_MAP,
    "prompt_logprobs": _NOTHING,
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": _NOTHING,
    "allowed_token_ids": _NOTHING,
    "bad_words": _EMPTY_LIST,
    "logits_processors": _EMPTY_LIST,
    "structured_outputs": _EMPTY_MAP,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_grammar": _NOTHING,
    "response_format": ({"type": "text"},),
    "echo": _OFF,
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "kv_transfer_params": _EMPTY_MAP,
    "vllm_xargs": _EMPTY_MAP,
    "thinking_token_budget": _NOTHING,
    "stream_interval": (1,),
    "mm_processor_kwargs": _EMPTY_MAP,
}

UNSUPPORTED_IN_CHAT: Mapping[str, tuple[Any, ...]] = {
    **_UNSUPPORTED_EVERYWHERE,
    "tools": _EMPTY_LIST,
    "tool_choice": ("none", "auto"),
    "functions": _EMPTY_LIST,
    "function_call": ("none", "auto"),
    "reasoning_effort": _NOTHING,
    "include_reasoning": (True,),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": _NOTHING,
    "prediction": _NOTHING,
    "web_search_options": _NOTHING,
    "chat_template": _NOTHING,
    "documents": _EMPTY_LIST,
}

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    **_UNSUPPORTED_EVERYWHERE,
    "suffix": ("",),
    "prompt_embeds": _NOTHING,
}

UNSUPPORTED_IN_MESSAGES: Mapping[str, tuple[Any, ...]] = {
    "tool_calls": _EMPTY_LIST,
    "function_call": _NOTHING,
    "refusal": _NOTHING,
    "annotations": _EMPTY_LIST,
    "audio": _NOTHING,
    "reasoning": _NOTHING,
    "reasoning_content": _NOTHING,
}


def supported_part(
    fields: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], *, prefix: str = ""
) -> dict[str, Any]:
    """`fields` without what is null or neutral; ApiError 400 names the first other one.

    `prefix` stands before the name in the error, as in `messages[0].`.
    """
    kept = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name not in unsupported:
            kept[name] = value
        elif not any(_is_same(value, neutral) for neutral in unsupported[name]):
            raise _refusal(prefix + name, neutral_values=unsupported[name])
    return kept


def _is_same(value: object, neutral: object) -> bool:
    # True == 1 in Python, yet a client that sends one means something else than the other.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _refusal(name: str, *, neutral_values: tuple[Any, ...]) -> ApiError:
    allowed = " or ".join(["null", *(repr(value) for value in neutral_values)])
    return bad_request(
        f"'{name}' is not supported by this server; leave it out or send {allowed}.",
        param=name,
        code="unsupported_parameter",
    )
