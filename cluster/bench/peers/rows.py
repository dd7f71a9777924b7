"""Says what is compared with what, and how much better it has to be: the rows of the table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# What a whole turn shows, beside the workloads that it runs.
START_UP = "start-up"
MEMORY = "memory"
WHOLE_TURN = (START_UP, MEMORY)

# "more": a higher figure is better.
Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured: its key in a workload's figures, how it is called, and what is better.

    scale: what it is multiplied with before it is shown.
    """

    key: str
    unit: str
    better: Better
    name: str = ""
    scale: float = 1.0


OUTPUT_RATE = Figure("output_tokens_per_s", "output tokens/s", "more")
PROMPT_RATE = Figure("prompt_tokens_per_s", "prompt tokens/s", "more")
TPOT = Figure("tpot_p50_ms", "TPOT ms", "less")
SECONDS = Figure("seconds", "seconds", "less")
FIRST_TOKEN = Figure("first_token_s", "seconds", "less")
PEAK = Figure("peak_bytes", "MiB", "less", scale=1 / 2**20)
LATENCIES = tuple(
    Figure(f"{metric}_p{percentile}_ms", f"{metric.upper()} p{percentile} ms", "less")
    for metric in ("ttft", "tpot")
    for percentile in (50, 99)
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `workload` run by two arms (cluster.bench.peers.arms).

    group: the name that chooses it on the command line. floor, aim: of the ratio ours / theirs, to
    be met from the better side; None where nothing was promised. aim_value: an aim for our own
    figure, in the unit shown.
    """

    group: str
    title: str
    workload: str
    figure: Figure
    ours: str
    theirs: str
    floor: float | None = None
    aim: float | None = None
    aim_value: float | None = None


ROWS = (
    Row("w1", "W1 bf16", "W1", OUTPUT_RATE, "pagoda", "vllm", 1.25, 1.6),
    Row("w1", "W1 bf16", "W1", OUTPUT_RATE, "pagoda", "openvino"),
    Row("w1", "W1 bf16, speculation", "W1", OUTPUT_RATE, "pagoda-as-it-starts", "vllm", 1.25, 1.6),
    Row("w1-int8", "W1 int8", "W1", OUTPUT_RATE, "pagoda-int8", "openvino-int8", 1.1, 1.5),
    Row("w3", "W3 bf16", "W3", PROMPT_RATE, "pagoda", "vllm", 1.1, 1.25),
    Row("w4", "W4 bf16", "W4", TPOT, "pagoda", "vllm", 0.6, 0.45),
    Row("w4", "W4 bf16", "W4", TPOT, "pagoda", "openvino"),
    Row("w4", "W4 bf16, speculation", "W4", TPOT, "pagoda-as-it-starts", "vllm", 0.6, 0.45),
    Row("w4-int8", "W4 int8", "W4", TPOT, "pagoda-int8", "openvino-int8", 0.8, 0.55),
    Row("w5", "W5", "W5", SECONDS, "pagoda", "vllm", 1.0, 0.7),
    *(
        Row("w6", "W6 through HTTP", "W6", figure, "pagoda-serve", "vllm-serve", 0.8, 0.5)
        for figure in LATENCIES
    ),
    *(
        Row(
            "w6",
            "W6 through HTTP, speculation",
            "W6",
            figure,
            "pagoda-serve-as-it-starts",
            "vllm-serve",
            0.8,
            0.5,
        )
        for figure in LATENCIES
    ),
    Row("http", "W1 through HTTP", "W1", OUTPUT_RATE, "pagoda-serve", "pagoda", 0.9, 0.95),
    Row(
        "start",
        "start-up to first token",
        START_UP,
        FIRST_TOKEN,
        "pagoda-serve",
        "vllm-serve",
        0.4,
        aim_value=15.0,
    ),
    Row("memory", "peak memory", MEMORY, PEAK, "pagoda", "vllm", 0.6),
)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))


def rows_of(groups: Iterable[str]) -> tuple[Row, ...]:
    """The rows of these groups, in the table's order. Raises ValueError for an unknown name."""
    wanted = set(groups)
    if unknown := wanted - set(GROUPS):
        raise ValueError(f"{', '.join(sorted(unknown))}: expected some of {', '.join(GROUPS)}")
    return tuple(row for row in ROWS if row.group in wanted)


def is_met(better: Better, value: float, bound: float) -> bool:
    """Whether `value` lies at `bound` or on the better side of it."""
    return value >= bound if better == "more" else value <= bound
