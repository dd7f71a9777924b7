"""The bodies of successful answers as values, so that what is sent and what is documented agree."""

from dataclasses import dataclass
from typing import Literal

from cluster.openai.token_logprobs import ChatLogprobs, CompletionLogprobs

FinishText = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ResponseIdentity:
    """What every body and every frame of one answer repeats. created is in Unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class PromptTokensDetails:
    """cached_tokens: prompt tokens whose K and V were found computed."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all prompts and all choices; a sampled end token counts, as it was computed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str
    refusal: None = None
    tool_calls: None = None


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """stop_reason is the stop string or requested stop token that ended it, else null."""

    index: int
    message: ChatReply
    logprobs: ChatLogprobs | None
    finish_reason: FinishText
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """stop_reason is the stop string or requested stop token that ended it, else null."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishText
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class Completion:
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of /v1/models. created is in Unix seconds; max_model_len in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ModelList:
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Answer of GET /health. num_replicas: those that can take requests now."""

    status: Literal["ok", "unhealthy"]
    num_replicas: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionReport:
    """Answer of GET /version."""

    version: str
