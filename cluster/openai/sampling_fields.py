"""The request fields that both generation routes share, and what they mean to an engine."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from replicas.request import BeamSearch, SamplingParams

_INT64_MAX = 2**63 - 1


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise ValueError("expected a string or a list of strings")
    if "" in strings:
        raise ValueError("expected no empty string")
    return tuple(strings)


StopStrings = Annotated[
    tuple[str, ...], PlainValidator(_stop_strings, json_schema_input_type=str | list[str])
]


class StreamOptions(BaseModel):
    """What a stream says of token counts.

    include_usage: one more chunk with the totals before the end. continuous_usage_stats: the
    totals so far on every chunk (vLLM); only with include_usage.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(BaseModel):
    """Fields of survey 4.1 and 4.4 that are honoured on both routes; null was dropped before.

    The fields at the end do not change the output: who asks, and notes the client keeps.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=_INT64_MAX, description="0 or -1: off")
    min_p: float = Field(default=0.0, ge=0, le=1)
    n: int = Field(default=1, ge=1)
    best_of: int | None = Field(
        default=None, ge=1, description="generate so many choices and show the n best"
    )
    use_beam_search: bool = Field(
        default=False, description="the likeliest outputs, found with best_of (or n) beams"
    )
    length_penalty: float = Field(default=1.0, description="only with use_beam_search")
    early_stopping: bool = Field(default=False, description="only with use_beam_search")
    stop: StopStrings = ()
    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0)
    seed: int | None = Field(default=None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    stream: bool = False
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool = True
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = Field(default=None, min_length=1)
    request_id: str | None = Field(default=None, pattern=r"^[!-~]{1,128}$")

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    session_id: str | None = None

    @property
    def num_generated(self) -> int:
        """Choices of a prompt that are generated; OpenAI's default of best_of is 1, whatever n."""
        return self.n if self.best_of in (None, 1) else self.best_of or self.n

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to show beside each token; None shows no log probabilities."""
        return None

    def sampling_params(self, *, max_tokens: int, seed: int) -> SamplingParams:
        """How the engine shall choose tokens; `seed` is used if the client gave none."""
        chosen = seed if self.seed is None else self.seed
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if self.use_beam_search else self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            # Negative seeds are legal here, while an engine counts from 0.
            seed=chosen & _INT64_MAX,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            num_logprobs=self._computed_logprobs(),
            beam=self._beam(),
        )

    def _beam(self) -> BeamSearch | None:
        if not self.use_beam_search:
            return None
        return BeamSearch(self.length_penalty, early_stopping=self.early_stopping)

    def _computed_logprobs(self) -> int | None:
        """What the engine computes: to choose the best choices it takes their tokens' own."""
        is_chosen = self.num_generated > self.n and not self.use_beam_search
        if self.num_logprobs is None and is_chosen:
            return 0
        return self.num_logprobs
