"""The body of POST /v1/chat/completions: messages that a chat template turns into one prompt."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from cluster.openai.sampling_fields import SamplingFields


def _checked_content(value: Any) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("expected a string or a list of text parts")
    for part in value:
        _check_part(part)
    return value


def _check_part(part: Any) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError("expected every part to be an object with a 'type'")
    if part["type"] != "text":
        kind = part["type"][:64]
        raise ValueError(f"a part of type '{kind}' is not supported; this model reads text")
    if not isinstance(part.get("text"), str) or set(part) != {"type", "text"}:
        raise ValueError("expected a text part to have exactly 'type' and 'text'")


class ChatMessage(BaseModel):
    """One message. A template that does not know a role refuses it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | list[dict[str, str]],
        PlainValidator(_checked_content, json_schema_input_type=str | list[dict[str, str]]),
    ]
    name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields):
    """max_completion_tokens is OpenAI's newer name of max_tokens.

    add_generation_prompt: end the prompt with the opening of a reply. continue_final_message:
    leave the last message open, so that the model goes on writing it. add_special_tokens: let the
    tokenizer add its own special tokens; templates mostly have written them already.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, description="only with logprobs")

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to show beside each token; None shows no log probabilities."""
        return self.top_logprobs if self.logprobs else None
