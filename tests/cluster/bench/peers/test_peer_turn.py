"""Peers' programs and ours take the same figures from the same answers."""

import pytest

from cluster.bench.peers.programs.peer_turn import PeerRequest, PeerTimes, figures_of
from replicas.bench.measure import RequestTimes, Run
from replicas.bench.one_turn import turn_figures
from replicas.bench.workload import WorkloadRequest
from replicas.engine_stats import EngineStats

PROMPTS = [(1, 2, 3), (4, 5)]
# First and last moment in seconds, and tokens, of each answer.
ANSWERS = [(0.1, 0.5, 5), (0.2, 0.2, 1)]


def test_equal_answers_give_equal_figures():
    run = Run(EngineStats(), seconds=2.0)
    for number, (first, last, tokens) in enumerate(ANSWERS):
        run.requests[f"r{number}"] = RequestTimes(first, last, tokens)
    ours = turn_figures(run, [WorkloadRequest(prompt, 1) for prompt in PROMPTS])
    requests = [
        PeerRequest(list(prompt), tokens)
        for prompt, (*_, tokens) in zip(PROMPTS, ANSWERS, strict=True)
    ]
    times = [
        PeerTimes(tokens, first, (last - first) / max(1, tokens - 1))
        for first, last, tokens in ANSWERS
    ]
    assert figures_of(requests, times, 2.0) == pytest.approx(ours)
    assert ours["tpot_p50_ms"] == pytest.approx(100.0)


def test_an_answer_of_another_length_is_no_result():
    with pytest.raises(RuntimeError, match="4 tokens, not 5"):
        figures_of([PeerRequest([1], 5)], [PeerTimes(4, 0.1, 0.1)], 1.0)
