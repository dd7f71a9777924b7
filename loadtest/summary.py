"""Prints a result as a short table that fits a terminal and a log."""

from collections.abc import Mapping
from typing import Any, TextIO

METRIC_NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2E",
}


def print_summary(result: Mapping[str, Any], out: TextIO) -> None:
    """Write the figures of one run; warnings come last, where they are read."""
    lines = [f"model {result['model_id']}  label {result['label']}"]
    lines += _count_lines(result)
    lines += _latency_lines(result)
    lines += _honesty_lines(result)
    print("\n".join(lines), file=out)


def _count_lines(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"requests   {result['completed']} finished, {result['failed']} failed, "
        f"{result['cancelled']} cancelled in {result['duration']:.2f} s "
        f"({result['request_throughput']:.3f}/s), at most "
        f"{result['max_concurrent_requests']} at once",
        f"tokens     {result['total_input_tokens']} in, {result['total_output_tokens']} out "
        f"({result['output_throughput']:.1f} out/s, {result['total_token_throughput']:.1f} "
        f"in all/s, counted from {result['output_tokens_from']})",
    ]
    if result["request_goodput"] is not None:
        limits = ", ".join(f"{k} <= {v:g} ms" for k, v in result["goodput_config_ms"].items())
        lines.append(
            f"goodput    {result['request_goodput']:.3f}/s "
            f"({result['goodput_attainment']:.1%} of requests; {limits})"
        )
    if result["errors_by_class"]:
        lines.append(
            "errors     " + ", ".join(f"{k} {v}" for k, v in result["errors_by_class"].items())
        )
    return lines


def _latency_lines(result: Mapping[str, Any]) -> list[str]:
    shown = [name for name in METRIC_NAMES if f"mean_{name}_ms" in result]
    if not shown:
        return []
    percentiles = [
        key.split("_")[0]
        for key in result
        if key.startswith("p") and key.endswith(f"_{shown[0]}_ms")
    ]
    columns = ["mean", "std", *percentiles]
    lines = ["ms        " + "".join(f"{column:>11}" for column in columns)]
    for name in shown:
        cells = "".join(f"{result[f'{column}_{name}_ms']:11.2f}" for column in columns)
        lines.append(f"{METRIC_NAMES[name]:<10}{cells}")
    return lines


def _honesty_lines(result: Mapping[str, Any]) -> list[str]:
    lag = result["schedule_lag_ms"]
    lines = [
        f"send lag   p50 {lag['p50']:.2f} ms, p99 {lag['p99']:.2f} ms, max {lag['max']:.2f} ms; "
        f"driver at {result['driver_cpu_ratio']:.0%} of a core"
    ]
    if not result["driver_kept_up"]:
        lines.append(f"DOUBTFUL   {result['driver_detail']}")
    saturation = result["saturation"]
    if saturation["kind"] != "none":
        lines.append(f"SATURATED  {saturation['kind']}: {saturation['detail']}")
    if result["was_stopped"]:
        lines.append("STOPPED    interrupted before its end")
    return lines
