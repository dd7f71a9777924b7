"""Runs workloads once with a peer's engine, in the peer's environment, and tells of each in a file.

The lines are those of replicas.bench.one_turn, which does the same with our engine. Greedy, end
tokens ignored, prompts as token ids of the same tokenizer.json, nothing detokenised.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

_FILES = {
    "W1": "w1-decode-heavy.jsonl",
    "W2": "w2-full-queue.jsonl",
    "W3": "w3-prefill-heavy.jsonl",
    "W4": "w4-single-stream.jsonl",
    "W5": "w5-shared-prefix.jsonl",
}
_WARM_UP = "warm-up.jsonl"
_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """One prompt as token ids, and how many tokens to generate."""

    prompt_token_ids: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """One answer: its tokens, seconds to the first and mean seconds of each after it."""

    output_tokens: int
    ttft_s: float
    tpot_s: float


class PeerEngine(Protocol):
    """What this program needs of an engine."""

    def run(self, requests: Sequence[PeerRequest]) -> list[PeerTimes]:
        """All requests at once, until the last one ends."""
        ...

    def forget(self) -> None:
        """Drop what is cached of earlier prompts."""
        ...


class VllmEngine:
    """vLLM's own class for offline use; its engine core is a process of its own, as it chooses."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

        self._params = SamplingParams
        self._llm = LLM(
            model=options.model,
            dtype="bfloat16",
            max_num_seqs=options.max_num_seqs,
            max_model_len=options.max_model_len,
            enable_prefix_caching=True,
            disable_log_stats=False,
        )

    def run(self, requests: Sequence[PeerRequest]) -> list[PeerTimes]:
        """Times as vLLM's own metrics tell them."""
        answers = self._llm.generate(
            [{"prompt_token_ids": request.prompt_token_ids} for request in requests],
            [
                self._params(
                    temperature=0.0,
                    max_tokens=request.output_tokens,
                    ignore_eos=True,
                    detokenize=False,
                )
                for request in requests
            ],
            use_tqdm=False,
        )
        return [self._times(answer) for answer in answers]

    def forget(self) -> None:
        """Through vLLM's own call."""
        self._llm.reset_prefix_cache()

    def _times(self, answer: Any) -> PeerTimes:
        metrics, num_tokens = answer.metrics, len(answer.outputs[0].token_ids)
        decode_s = metrics.last_token_ts - metrics.first_token_ts
        return PeerTimes(num_tokens, metrics.first_token_latency, decode_s / max(1, num_tokens - 1))


class OpenVinoEngine:
    """OpenVINO GenAI's continuous batching: weights as converted, bf16 arithmetic, 8-bit KV."""

    def __init__(self, options: argparse.Namespace) -> None:
        import openvino_genai  # type: ignore[import-not-found]
        from openvino import Tensor  # type: ignore[import-not-found]

        self._genai, self._tensor = openvino_genai, Tensor
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.cache_gib
        scheduler.max_num_seqs = options.max_num_seqs
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.enable_prefix_caching = True
        properties = {
            "INFERENCE_NUM_THREADS": options.threads,
            "INFERENCE_PRECISION_HINT": "bf16",
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            options.model, scheduler, "CPU", properties
        )

    def run(self, requests: Sequence[PeerRequest]) -> list[PeerTimes]:
        """Steps as the pipeline's own loop does, and looks at every answer after each of them."""
        began_at = time.perf_counter()
        handles = {}
        for number, request in enumerate(requests):
            config = self._genai.GenerationConfig()
            config.max_new_tokens = request.output_tokens
            config.ignore_eos = True
            config.do_sample = False
            ids = np.array([request.prompt_token_ids], dtype=np.int64)
            handles[number] = self._pipeline.add_request(number, self._tensor(ids), config)
        moments: list[list[float]] = [[] for _ in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - began_at
            for number, handle in handles.items():
                if handle.can_read():
                    moments[number].extend(
                        now for output in handle.read().values() for _ in output.generated_ids
                    )
        return [_times_of(of_request) for of_request in moments]

    def forget(self) -> None:
        """Nothing: no two workloads of one process share a prompt, and there is no call for it."""


_ENGINES: dict[str, Callable[[argparse.Namespace], PeerEngine]] = {
    "vllm": VllmEngine,
    "openvino": OpenVinoEngine,
}


def main() -> int:
    """Run the workloads in order; raises whatever the engine raises."""
    options = _parser().parse_args()
    tokenizer = Tokenizer.from_file(str(Path(options.tokenizer) / "tokenizer.json"))
    engine = _ENGINES[options.engine](options)
    folder = Path(options.workloads)
    warm_up = _read(folder / _WARM_UP, tokenizer)
    with Path(options.events).open("a") as events:
        for name in options.only.split(","):
            requests = _read(folder / _FILES[name], tokenizer)[: options.requests]
            engine.run(warm_up)
            engine.forget()
            began_at = time.monotonic()
            times = engine.run(requests)
            ended_at = time.monotonic()
            figures = figures_of(requests, times, ended_at - began_at)
            line = {"workload": name, "began_at": began_at, "ended_at": ended_at}
            print(json.dumps({**line, "figures": figures}), file=events, flush=True)
        settings = {**vars(options), "LD_PRELOAD": os.environ.get("LD_PRELOAD", "")}
        print(json.dumps({"done": True, "settings": settings}), file=events, flush=True)
    # Memory is measured until whoever started this closes its input.
    sys.stdin.read()
    return 0


def figures_of(
    requests: Sequence[PeerRequest], times: Sequence[PeerTimes], seconds: float
) -> dict[str, float]:
    """The same figures as ours. Raises RuntimeError if an answer has another length than asked."""
    for request, answer in zip(requests, times, strict=True):
        if answer.output_tokens != request.output_tokens:
            raise RuntimeError(f"{answer.output_tokens} tokens, not {request.output_tokens}")
    ttfts_ms = 1e3 * np.array([answer.ttft_s for answer in times])
    tpots_ms = 1e3 * np.array([one.tpot_s for one in times if one.output_tokens > 1] or [0.0])
    num_output_tokens = sum(answer.output_tokens for answer in times)
    num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    return {
        "seconds": seconds,
        "output_tokens": num_output_tokens,
        "output_tokens_per_s": num_output_tokens / seconds,
        "prompt_tokens_per_s": num_prompt_tokens / seconds,
        "ttft_p50_ms": float(np.percentile(ttfts_ms, 50)),
        "ttft_p99_ms": float(np.percentile(ttfts_ms, 99)),
        "tpot_p50_ms": float(np.percentile(tpots_ms, 50)),
        "tpot_p99_ms": float(np.percentile(tpots_ms, 99)),
    }


def _times_of(moments: Sequence[float]) -> PeerTimes:
    tpot_s = (moments[-1] - moments[0]) / max(1, len(moments) - 1)
    return PeerTimes(len(moments), moments[0], tpot_s)


def _read(path: Path, tokenizer: Tokenizer) -> list[PeerRequest]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        PeerRequest(
            tokenizer.encode(row["prompt"], add_special_tokens=False).ids, row["output_tokens"]
        )
        for row in rows
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(_ENGINES), required=True)
    parser.add_argument("--model", required=True, help="folder in the engine's own form")
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--cache-gib", type=int, default=0, help="K and V; OpenVINO only")
    parser.add_argument("--threads", type=int, default=0, help="OpenVINO only")
    parser.add_argument("--only", required=True, metavar="W1,W4", help="workloads, in order")
    parser.add_argument("--workloads", required=True, help="folder of JSONL files")
    parser.add_argument("--requests", type=int, default=None, help="first ones of each workload")
    parser.add_argument("--events", required=True, help="file that the lines are added to")
    return parser


if __name__ == "__main__":
    sys.exit(main())
