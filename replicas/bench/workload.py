"""Requests to run: read from a JSONL file, or a smaller likeness of it for a quick look."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from kvstore.block_hash import root_hash
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest, SamplingParams

FILES = {
    "W1": "w1-decode-heavy.jsonl",
    "W2": "w2-full-queue.jsonl",
    "W3": "w3-prefill-heavy.jsonl",
    "W4": "w4-single-stream.jsonl",
    "W5": "w5-shared-prefix.jsonl",
}
WARM_UP = "warm-up.jsonl"


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One prompt as token ids, and how many tokens to generate (greedy, end tokens ignored)."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int

    def to_engine(self, request_id: str, root: bytes, max_tokens: int = 0) -> EngineRequest:
        """The request for an engine; max_tokens 0 means the workload's own number."""
        return EngineRequest(
            request_id,
            self.prompt_token_ids,
            SamplingParams(
                max_tokens=max_tokens or self.output_tokens, temperature=0.0, ignore_eos=True
            ),
            root=root,
        )


def read_workload(path: Path, model: PreparedModel, *, scale: float) -> list[WorkloadRequest]:
    """The requests of a file; `scale` below 1 keeps the first share of them, at least one.

    Raises ValueError if the tokenizer does not give a prompt the length that the file states.
    """
    tokenizer = Tokenizer.from_file(str(Path(model.folder) / "tokenizer.json"))
    requests = list(_requests(path, tokenizer))
    return requests[: max(1, round(len(requests) * scale))]


def root_of(model: PreparedModel, block_size: int) -> bytes:
    """The block-hash root of requests without tenant or adapter."""
    return root_hash(fingerprint=model.fingerprint, block_size=block_size)


def _requests(path: Path, tokenizer: Tokenizer) -> Iterator[WorkloadRequest]:
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            ids = tokenizer.encode(row["prompt"], add_special_tokens=False).ids
            stated = row.get("prompt_tokens", len(ids))
            if len(ids) != stated:
                raise ValueError(f"{path.name}: a prompt has {len(ids)} tokens, not {stated}")
            yield WorkloadRequest(tuple(ids), row["output_tokens"])
