"""Says how the mock server behaves: every delay, limit and fault, drawn from one seed."""

import random
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["answer", "error", "drop"]


@dataclass(frozen=True, slots=True)
class MockProfile:
    """What the mock server pretends to be.

    Ratios are shares in [0, 1]. `jitter_ratio` moves each delay uniformly by up to that share.
    `max_num_running` requests are served at once and the rest wait in line (0: no limit);
    `max_num_queued` may wait before newcomers get a 503 (None: no limit).
    For `slow_start_s` after the first request every delay is `slow_start_factor` times longer.
    The whole server freezes for `stall_s`, `stall_at_s` after the first request.
    """

    ttft_s: float = 0.05
    ttft_per_prompt_token_s: float = 0.0
    itl_s: float = 0.01
    jitter_ratio: float = 0.0
    output_tokens: int = 64
    tokens_per_chunk: int = 1
    tokens_per_word: float = 1.0
    template_tokens: int = 0
    error_rate: float = 0.0
    error_status: int = 500
    drop_rate: float = 0.0
    max_num_running: int = 0
    max_num_queued: int | None = None
    slow_start_s: float = 0.0
    slow_start_factor: float = 4.0
    stall_at_s: float = 0.0
    stall_s: float = 0.0
    reports_usage: bool = True
    model: str = "mock-model"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("error_rate", "drop_rate", "jitter_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a share in [0, 1]")
        for name in ("output_tokens", "tokens_per_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The delays one request will meet: seconds from its start to each of its chunks."""

    outcome: Outcome
    chunk_offsets_s: tuple[float, ...]
    num_output_tokens: int


class AnswerPlanner:
    """Draws each request's fate in order of arrival; equal seeds give equal plans."""

    def __init__(self, profile: MockProfile) -> None:
        self._profile = profile
        self._random = random.Random(profile.seed)

    def plan(self, *, prompt_tokens: int, output_tokens: int, slowdown: float) -> AnswerPlan:
        """Decide delays for one request of `prompt_tokens` that wants `output_tokens`."""
        profile = self._profile
        draw = self._random.random()
        if draw < profile.error_rate:
            return AnswerPlan("error", (), 0)
        drops = draw < profile.error_rate + profile.drop_rate
        num_chunks = -(-output_tokens // profile.tokens_per_chunk)
        if drops:
            num_chunks = max(1, num_chunks // 2)
        first_s = profile.ttft_s + profile.ttft_per_prompt_token_s * prompt_tokens
        offsets = [self._jittered(first_s) * slowdown]
        step_s = profile.itl_s * profile.tokens_per_chunk * slowdown
        for _ in range(num_chunks - 1):
            offsets.append(offsets[-1] + self._jittered(step_s))
        return AnswerPlan("drop" if drops else "answer", tuple(offsets), output_tokens)

    def _jittered(self, delay_s: float) -> float:
        ratio = self._profile.jitter_ratio
        if ratio == 0.0:
            return delay_s
        return delay_s * (1.0 + ratio * (2.0 * self._random.random() - 1.0))
