"""Holds everything a run was told, in frozen values that can cross to worker processes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loadtest.arrivals import Ramp
from loadtest.datasets.shaping import LengthShaping
from loadtest.distribution import Distribution, fixed
from loadtest.http_client import Target
from loadtest.openai_backend import BackendKind

ArrivalKind = Literal["rate", "trace", "users"]
METRICS = ("ttft", "tpot", "itl", "e2el")
SLO_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The server under test and how to speak to it. `model` None takes the server's first."""

    target: Target
    backend: BackendKind
    model: str | None = None
    tokenizer: Path | None = None
    calibrate: bool = True
    ignore_eos: bool = False
    continuous_usage: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ready_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """What is asked. `dataset` names a trace, a prompt set or one of the made-up workloads.

    Lengths are in tokens, `think_time_s` and `tool_pause_s` in seconds.
    """

    dataset: str = "random"
    path: Path | None = None
    folders: tuple[Path, ...] = ()
    shaping: LengthShaping = field(default_factory=LengthShaping)
    input_tokens: Distribution = field(default_factory=lambda: fixed(128))
    output_tokens: Distribution = field(default_factory=lambda: fixed(128))
    prefix_tokens: int = 0
    num_prefixes: int = 1
    prefix_skew: float = 0.0
    turns: Distribution = field(default_factory=lambda: fixed(4))
    think_time_s: Distribution = field(default_factory=lambda: fixed(1))
    agent_steps: Distribution = field(default_factory=lambda: fixed(5))
    agent_fanout: Distribution = field(default_factory=lambda: fixed(1))
    tool_pause_s: Distribution = field(default_factory=lambda: Distribution("exponential", (1.0,)))
    num_choices: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.num_choices < 1 or self.num_prefixes < 1:
            raise ValueError(
                f"num_choices={self.num_choices}, num_prefixes={self.num_prefixes}: "
                "expected at least 1"
            )


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    """When it is asked. Rates are programs per second, everything else seconds.

    `arrivals` rate: an open loop at `rate_rps` (or along `ramp`); trace: at the trace's own times
    divided by `speedup`; users: a closed loop of `num_users`, each pausing `think_time_s`.
    At least one of `num_programs` and `duration_s` is set.
    """

    arrivals: ArrivalKind = "rate"
    rate_rps: float = math.inf
    burstiness: float = 1.0
    ramp: Ramp | None = None
    speedup: float = 1.0
    num_users: int = 1
    think_time_s: Distribution = field(default_factory=lambda: fixed(0))
    num_programs: int | None = 1000
    duration_s: float | None = None
    max_concurrency: int | None = None
    num_warmups: int = 0
    warm_up_s: float = 0.0
    cool_down_s: float = 0.0
    grace_s: float = math.inf
    cancel_ratio: float = 0.0
    cancel_after_s: Distribution = field(default_factory=lambda: fixed(1))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_programs is None and self.duration_s is None:
            raise ValueError("give --num-prompts or --duration: a run needs an end")
        if self.speedup <= 0 or self.rate_rps <= 0 or self.burstiness <= 0:
            raise ValueError(
                f"speedup={self.speedup}, rate={self.rate_rps}, burstiness={self.burstiness}: "
                "expected more than 0"
            )
        if not 0.0 <= self.cancel_ratio <= 1.0:
            raise ValueError(f"cancel_ratio={self.cancel_ratio}: expected a share in [0, 1]")
        if self.num_programs is None and self._sends_at_once():
            raise ValueError("an infinite --request-rate needs --num-prompts")

    def _sends_at_once(self) -> bool:
        return self.arrivals == "rate" and self.ramp is None and math.isinf(self.rate_rps)


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """What is computed. `goodput_ms` maps ttft, tpot or e2el to its limit in milliseconds."""

    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = METRICS
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)
    detailed: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.goodput_ms) - set(SLO_METRICS)
        if unknown:
            raise ValueError(f"goodput {sorted(unknown)}: expected {', '.join(SLO_METRICS)}")
        strange = set(self.metrics) - set(METRICS)
        if strange:
            raise ValueError(f"metrics {sorted(strange)}: expected {', '.join(METRICS)}")


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """One run in full; `label` and `metadata` are copied into the result."""

    server: ServerConfig
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    traffic: TrafficConfig = field(default_factory=TrafficConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    num_processes: int = 1
    label: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = self.traffic.max_concurrency
        if self.num_processes < 1 or (places is not None and places < self.num_processes):
            raise ValueError(
                f"num_processes={self.num_processes}: expected 1 or more, and no more than "
                f"max_concurrency={places}"
            )
