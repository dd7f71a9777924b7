"""Settings of speculative decoding, under vLLM's names."""

from dataclasses import dataclass
from typing import Literal, get_args

SpeculativeMethod = Literal["auto", "off", "ngram", "draft_model"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Whether tokens are guessed, and several of them verified in one step.

    speculative_method: who guesses: nobody (off), what followed the same tokens earlier in the
        request (ngram), or a small model (draft_model). auto: ngram where the output is the same
        bit for bit (kernels=cpu, or deterministic), else off.
    num_speculative_tokens: most guesses for one request in a step; each step takes as many as are
        expected to pay, which is none when the batch is full or the text does not repeat.
    prompt_lookup_min: tokens that must have stood there before, with ngram.
    prompt_lookup_max: tokens up to which a longer match is preferred, with ngram.
    speculative_model: with draft_model, a model of the same vocabulary, named as the model itself.
    """

    speculative_method: SpeculativeMethod = "auto"
    num_speculative_tokens: int = 7
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    speculative_model: str = ""

    def __post_init__(self) -> None:
        if self.speculative_method not in get_args(SpeculativeMethod):
            raise ValueError(
                f"speculative_method={self.speculative_method!r}: expected one of "
                + ", ".join(get_args(SpeculativeMethod))
            )
        if not 1 <= self.num_speculative_tokens <= 64:
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens}: expected 1 to 64"
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= 64:
            raise ValueError(
                f"prompt_lookup_min={self.prompt_lookup_min}, "
                f"prompt_lookup_max={self.prompt_lookup_max}: expected 1 <= min <= max <= 64"
            )
        if bool(self.speculative_model) != (self.speculative_method == "draft_model"):
            raise ValueError(
                f"speculative_model={self.speculative_model!r}: expected one with "
                "speculative_method=draft_model, and only then"
            )
