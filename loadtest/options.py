"""Defines the command line, with vLLM's option names where the meaning is the same."""

import argparse
from collections.abc import Sequence

from loadtest.datasets import DATASET_NAMES
from loadtest.distribution import Distribution, parse_distribution
from loadtest.synthetic import SYNTHETIC

PROG = "pagoda loadtest"


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The parser of a run."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Load an OpenAI-compatible server the way real traffic does.",
        epilog=f"Reports from saved results: {prog} report A.json B.json -o out.html",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_server(parser)
    _add_dataset(parser)
    _add_lengths(parser)
    _add_synthetic(parser)
    _add_arrivals(parser)
    _add_window(parser)
    _add_measures(parser)
    _add_capacity(parser)
    _add_output(parser)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--backend", choices=("openai", "openai-chat"), default=None, help="default: by endpoint")
    add("--base-url", default=None, help="such as http://127.0.0.1:8000; overrides host and port")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--endpoint", default=None, help="default: the backend's own path")
    add("--model", default=None, help="default: the first the server names")
    add("--tokenizer", default=None, help="path of a tokenizer.json, for exact prompt lengths")
    add(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask the server with two short prompts how its tokens relate to words",
    )
    add("--header", nargs="+", default=[], metavar="KEY=VALUE")
    add("--extra-body", default="{}", metavar="JSON", help="merged into every request")
    add("--temperature", type=float, default=None)
    add("--top-p", type=float, default=None)
    add("--top-k", type=int, default=None)
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=None)
    add("--continuous-usage", action="store_true", help="ask for token counts in each event")
    add("--insecure", action="store_true", help="do not verify TLS certificates")
    add("--request-timeout", type=float, default=600.0, metavar="S")
    add("--ready-check-timeout-sec", type=float, default=60.0)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dataset")
    add = group.add_argument
    names = (*SYNTHETIC, *DATASET_NAMES)
    add("--dataset-name", "--dataset", dest="dataset_name", choices=names, default="random")
    add("--dataset-path", default=None)
    add("--dataset-dir", action="append", default=[], help="where well-known traces lie")
    add("--seed", type=int, default=0)
    add("--disable-shuffle", action="store_true", help="keep a prompt set's own order")
    add("--n", type=int, default=1, help="choices per request (fan-out within the server)")


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("lengths of a dataset, in tokens")
    add = group.add_argument
    add("--input-scale", type=float, default=1.0, help="multiply prompt lengths")
    add("--output-scale", type=float, default=1.0, help="multiply output lengths")
    add("--max-input-len", type=int, default=None, help="cap prompts")
    add("--max-output-len", type=int, default=None, help="cap outputs")
    add("--max-model-len", type=int, default=None, help="cap prompt and output together")


def _add_synthetic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "made-up workloads",
        "Lengths and times are N, uniform:A,B, exponential:MEAN or lognormal:MEAN,SIGMA, "
        "with @LOW-HIGH after them to cut them.",
    )
    add = group.add_argument
    add("--input-len", "--random-input-len", type=_distribution, default="128")
    add("--output-len", "--random-output-len", type=_distribution, default=None)
    add("--lengths-from", default=None, metavar="NAME[:PATH]", help="draw lengths from a trace")
    add(
        "--prefix-len",
        "--random-prefix-len",
        "--prefix-repetition-prefix-len",
        dest="prefix_len",
        type=int,
        default=0,
        help="tokens of shared prefix before each prompt",
    )
    add("--num-prefixes", "--prefix-repetition-num-prefixes", type=int, default=1)
    add("--prefix-skew", type=float, default=0.0, help="Zipf exponent of the prefixes' popularity")
    add("--num-turns", type=_distribution, default="4", help="turns of a session")
    add("--think-time", type=_distribution, default="0", help="seconds before a user's next turn")
    add("--agent-steps", type=_distribution, default="5")
    add("--agent-fanout", type=_distribution, default="1", help="parallel calls per step")
    add("--tool-pause", type=_distribution, default="exponential:1", help="seconds between steps")


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("arrivals")
    add = group.add_argument
    add("--request-rate", type=float, default=None, help="requests per second (default inf)")
    add("--burstiness", type=float, default=1.0, help="gamma shape; 1 Poisson, inf constant")
    add("--ramp-up-strategy", choices=("linear", "exponential"), default=None)
    add("--ramp-up-start-rps", type=float, default=None)
    add("--ramp-up-end-rps", type=float, default=None)
    add("--speedup", type=float, default=None, help="replay a trace's own times this much faster")
    add("--users", type=int, default=None, help="closed loop of so many users")
    add("--max-concurrency", type=int, default=None, help="hold requests back at the client")
    add(
        "--num-prompts",
        type=int,
        default=None,
        help="requests, conversations or agents; 1000 without --duration",
    )
    add("--duration", type=float, default=None, metavar="S", help="stop sending after this long")
    add("--cancel-rate", type=float, default=0.0, help="share of requests given up by the client")
    add("--cancel-delay", type=_distribution, default="1", help="seconds until it gives up")
    add("--processes", type=int, default=1)


def _add_window(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured of a run")
    add = group.add_argument
    add("--num-warmups", type=int, default=0, help="requests sent before the run")
    add("--warm-up", type=float, default=0.0, metavar="S", help="first seconds left out")
    add("--cool-down", type=float, default=0.0, metavar="S", help="last seconds left out")
    add("--grace-period", type=float, default=None, metavar="S", help="wait this long for answers")


def _add_measures(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("figures")
    add = group.add_argument
    add("--goodput", nargs="+", default=[], metavar="KEY:MS", help="limits, as ttft:500,tpot:50")
    add("--percentile-metrics", default="ttft,tpot,itl,e2el")
    add("--metric-percentiles", default="50,90,95,99")


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search of the highest goodput")
    add = group.add_argument
    add("--find-capacity", action="store_true", help="bisect the rate, from --request-rate on")
    add("--target-attainment", type=float, default=0.9, help="share that must meet --goodput")
    add("--capacity-precision", type=float, default=0.1)
    add("--capacity-max-probes", type=int, default=12)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--label", default="", help="name of the run in results and reports")
    add("--metadata", nargs="+", default=[], metavar="KEY=VALUE")
    add("--save-result", action="store_true", help="write the JSON result")
    add("--save-detailed", action="store_true", help="with lists of every request")
    add("--append-result", action="store_true")
    add("--result-dir", default=None)
    add("--result-filename", default=None)
    add("--report", default=None, metavar="HTML", help="write a report of this run")
    add("--quiet", action="store_true", help="no live view")


def _distribution(text: str) -> Distribution:
    try:
        return parse_distribution(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def pairs_of(items: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE items as a mapping. Raises ValueError naming the option."""
    pairs = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign:
            raise ValueError(f"{option} {item!r}: expected KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def goodput_of(items: Sequence[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` or `ttft:500,tpot:50` as milliseconds by metric."""
    limits = {}
    for item in ",".join(items).split(","):
        if not item:
            continue
        name, sign, value = item.partition(":")
        try:
            limits[name.strip()] = float(value)
        except ValueError as error:
            raise ValueError(f"--goodput {item!r}: expected NAME:MILLISECONDS") from error
        if limits[name.strip()] < 0:
            raise ValueError(f"--goodput {item!r}: expected no negative time")
    return limits
