"""Names the files that describe the workloads."""

WARM_UP = "warm-up.jsonl"
FILES = {
    "W1": "w1-decode-heavy.jsonl",
    "W3": "w3-prefill-heavy.jsonl",
    "W4": "w4-single-stream.jsonl",
    "W5": "w5-shared-prefix.jsonl",
    "W6": "w6-online.jsonl",
}
