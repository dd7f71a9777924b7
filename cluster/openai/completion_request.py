"""The body of POST /v1/completions: a prompt as text or tokens, one or many."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator

from cluster.openai.sampling_fields import SamplingFields

Prompt = str | list[int]

_EXPECTED_PROMPT = (
    "expected a string, a list of strings, a list of token ids or a list of token id lists"
)


def _is_token_ids(value: Any) -> bool:
    # bool is an int in Python and no token id.
    return isinstance(value, list) and all(type(item) is int for item in value)


def _prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(_EXPECTED_PROMPT)
    if not value:
        raise ValueError("expected at least one prompt")
    if isinstance(value[0], int) and _is_token_ids(value):
        return [value]
    if all(isinstance(item, str) for item in value) or all(map(_is_token_ids, value)):
        return value
    raise ValueError(_EXPECTED_PROMPT)


class CompletionRequest(SamplingFields):
    """`prompt` holds one entry for each prompt, whichever of the four shapes came."""

    prompt: Annotated[
        list[Prompt],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]
    logprobs: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to show beside each token; 0 shows the token's own figure alone."""
        return self.logprobs
