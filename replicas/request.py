"""The nouns of a request: what a client asked for, and what the engine knows of it so far."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from replicas.handoff import HandoffIn, HandoffNews, HandoffOut


class FinishReason(StrEnum):
    """Why a choice ended. The first two are OpenAI's; the others never reach a client as they are.

    STOP_STRING is set by a gateway that found a stop string in the text: it is a normal end and
    is counted as one, unlike CANCELLED (the client left) and ERROR (the engine failed). HANDED_OFF
    ends the part of a request that a prefill engine computed; another engine goes on with it.
    """

    STOP = "stop"
    LENGTH = "length"
    STOP_STRING = "stop_string"
    HANDED_OFF = "handed_off"
    CANCELLED = "cancelled"
    ERROR = "error"
    REFUSED = "refused"


class RefusalReason(StrEnum):
    """Why the engine turned a request away, or a gateway before it asked one (SLO_UNMEETABLE)."""

    QUEUE_FULL = "queue_full"
    PROMPT_TOO_LONG = "prompt_too_long"
    NEVER_FITS = "never_fits"
    EXPIRED = "expired"
    SLO_UNMEETABLE = "slo_unmeetable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was turned away, in a form a gateway can answer with.

    `retry_after_s` is None when the same request would be refused again.
    """

    reason: RefusalReason
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Look for the likeliest outputs instead of sampling: as many beams as the request has choices.

    A finished output scores its summed log probability / its number of tokens ** length_penalty,
    the end token included. early_stopping: end as soon as there are as many finished outputs as
    beams; otherwise once no beam could still score higher at its present length.
    """

    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty={self.length_penalty}: expected a number")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is chosen from the logits, and when a choice ends.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1.0 and `min_p` 0.0 mean off. `seed` is a
    64-bit number; the random number of position *p* depends on (seed, choice, p) alone (DESIGN 3).
    `max_tokens` counts output tokens. `stop_token_ids` adds to the model's own end tokens, which
    `ignore_eos` turns off. End tokens cannot be sampled before `min_tokens` output tokens.
    `needs_last_token` marks a request whose mask or penalty depends on the token before: it is
    never planned while its last token is still being computed.
    `num_logprobs` None computes no log-probabilities, 0 the sampled token's, k those of the k most
    likely tokens too; all before temperature and filters (vLLM's raw_logprobs).
    `beam` searches instead of sampling; choice 0 is then the best output, and nothing of a choice
    is told before the end.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    needs_last_token: bool = False
    num_logprobs: int | None = None
    beam: BeamSearch | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: expected at least 1")
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature={self.temperature}: expected 0 or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p}: expected a share in (0, 1]")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p={self.min_p}: expected a share in [0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: expected 0 (off) or more")
        if self.num_logprobs is not None and self.num_logprobs < 0:
            raise ValueError(f"num_logprobs={self.num_logprobs}: expected 0 or more, or None")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens}: expected 0 to max_tokens={self.max_tokens}"
            )


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request as it crosses into an engine; plain values only, safe to send to a process.

    prompt_token_ids: the prompt, at least one token.
    emitted_token_ids: tokens an earlier attempt already gave to the client (failover); they are
        known tokens here, and the first token of this attempt has index len(emitted_token_ids).
        Only with num_choices == 1.
    root: the root of this request's block hashes (kvstore.block_hash.root_hash), which carries
        fingerprint, adapter and tenant salt. block_hashes: names of the prompt's full blocks if a
        gateway already made them, else empty and the engine makes them.
    attempt: counts resubmissions of one request; tokens of another attempt are not accepted.
    priority: lower is served first (scheduling_policy priority).
    queue_timeout_s: refused as expired if it has waited this long without being scheduled.
    ttft_slo_s, tpot_slo_s: latency beyond which the answer is worthless, if the client states one;
        a router looks at them, the engine does not.
    session_id: of the conversation or agent run that it is a turn of, if the client names one; what
        becomes of its blocks when it ends depends on how long such sessions pause.
    handoff: its other part is computed elsewhere (only with one choice): compute the prompt and
        publish it, or adopt what was published, with the tokens sampled there as
        emitted_token_ids.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    root: bytes
    block_hashes: tuple[bytes, ...] = ()
    num_choices: int = 1
    attempt: int = 0
    priority: int = 0
    emitted_token_ids: tuple[int, ...] = ()
    queue_timeout_s: float | None = None
    session_id: str | None = None
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    handoff: HandoffOut | HandoffIn | None = None

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError("prompt_token_ids: expected at least one token")
        if self.num_choices < 1:
            raise ValueError(f"num_choices={self.num_choices}: expected at least 1")
        if self.emitted_token_ids and self.num_choices != 1:
            raise ValueError("emitted_token_ids: expected only with num_choices=1")
        if self.handoff is not None and (self.num_choices != 1 or self.sampling.beam is not None):
            raise ValueError("handoff: expected only with num_choices=1 and without a beam search")


@dataclass(frozen=True, slots=True)
class Timeline:
    """When things happened to one choice, in seconds of the engine's monotonic clock.

    received_at: when it came in, while a step was perhaps under way. arrived_at: the step boundary
    at which it was admitted. TTFT inside the engine is first_token_at - received_at; it splits into
    scheduling delay (until arrived_at), queueing (until scheduled_at) and prefill (lecture 10,
    10.6). num_preemptions: how often its blocks were taken so far.
    """

    arrived_at: float
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    received_at: float | None = None
    num_preemptions: int = 0


class TokenLogprob(NamedTuple):
    """How likely a token was to the model: natural logarithms, before temperature and filters.

    top: ids of the likeliest tokens there and their log probabilities, likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What one engine step has to say about one choice of one request.

    index: position of token_ids[0] among the choice's output tokens. An entry without tokens,
    finish_reason and refusal says that the request was admitted to the waiting line.
    stop_token_id: the end token that was sampled, when finish_reason is STOP (it is not in
    token_ids). num_cached_tokens: prompt tokens that were found computed, with the first token.
    timeline: with the first token of a choice and with its last entry. logprobs: one for each of
    token_ids and then one for stop_token_id; empty if the request did not ask. handoff: how far
    the request's hand-off has come, with no tokens of its own.
    """

    request_id: str
    attempt: int
    choice: int
    index: int
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    refusal: Refusal | None = None
    timeline: Timeline | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    handoff: HandoffNews | None = None


@dataclass(frozen=True, slots=True)
class KvEvent:
    """A change in what an engine's prefix cache can find: `stored`, `removed` or `cleared`.

    parent is the parent hash of the first stored block. Events of one engine are numbered by the
    publisher (epoch and sequence ride on the token stream, DESIGN 2.4).
    """

    kind: str
    block_hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    token_ids: tuple[int, ...] = field(default=())
