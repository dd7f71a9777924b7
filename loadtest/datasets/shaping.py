"""Fits a trace's lengths to a smaller model: scale, then cap, then leave out what is too long."""

from dataclasses import dataclass, replace

from loadtest.program import Call, Words


@dataclass(frozen=True, slots=True)
class LengthShaping:
    """How lengths are changed. Scales multiply tokens; caps are in tokens (None: none).

    `max_total_tokens` is the model's context: prompts are shortened so that prompt and output
    fit together. `fixed_output_tokens` replaces every output length.
    """

    input_scale: float = 1.0
    output_scale: float = 1.0
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    fixed_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.input_scale <= 0 or self.output_scale <= 0:
            raise ValueError(
                f"input_scale={self.input_scale}, output_scale={self.output_scale}: "
                "expected more than 0"
            )

    def input_tokens(self, num_tokens: int, *, output_tokens: int | None = None) -> int:
        """The prompt length to use for one of `num_tokens` in the trace; at least 1."""
        length = round(num_tokens * self.input_scale)
        if self.max_input_tokens is not None:
            length = min(length, self.max_input_tokens)
        if self.max_total_tokens is not None:
            length = min(length, self.max_total_tokens - (output_tokens or 1))
        return max(1, length)

    def output_tokens(self, num_tokens: int | None) -> int | None:
        """The output length to ask for; None stays None unless it is fixed."""
        if self.fixed_output_tokens is not None:
            return self.fixed_output_tokens
        if num_tokens is None:
            return self.max_output_tokens
        length = round(num_tokens * self.output_scale)
        for cap in (self.max_output_tokens, self._room_for_output()):
            if cap is not None:
                length = min(length, cap)
        return max(1, length)

    def fits(self, call: Call) -> bool:
        """Whether a call with given text (which cannot be scaled) is within the caps."""
        tokens = call.prompt_tokens
        if tokens is None:
            return True
        total = tokens + (call.output_tokens or 1)
        too_long = self.max_input_tokens is not None and tokens > self.max_input_tokens
        no_room = self.max_total_tokens is not None and total > self.max_total_tokens
        return not too_long and not no_room

    def made_up(self, seed: int, *, input_tokens: int, output_tokens: int) -> Call:
        """A call of made-up text with shaped lengths."""
        output = self.output_tokens(output_tokens)
        length = self.input_tokens(input_tokens, output_tokens=output)
        return Call((Words(seed, length),), output, length)

    def reshaped(self, call: Call) -> Call:
        """A call of given text with its output length shaped."""
        return replace(call, output_tokens=self.output_tokens(call.output_tokens))

    def _room_for_output(self) -> int | None:
        return None if self.max_total_tokens is None else self.max_total_tokens - 1
