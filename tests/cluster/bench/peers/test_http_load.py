"""A load test's figures stand under the names of the others, and only if every answer is whole."""

import pytest

from cluster.bench.peers.http_load import LoadFailed, figures_of

ROWS = [{"prompt": "a", "output_tokens": 3}, {"prompt": "b", "output_tokens": 4}]
RESULT = {
    "duration": 2.0,
    "total_input_tokens": 20,
    "total_output_tokens": 7,
    "output_throughput": 3.5,
    "completed": 2,
    "errors_by_class": {},
    "p50_ttft_ms": 10.0,
    "p99_ttft_ms": 20.0,
    "p50_tpot_ms": 1.0,
    "p99_tpot_ms": 2.0,
    "driver_cpu_ratio": 0.1,
}


def test_figures_bear_the_names_of_the_programs_in_process():
    figures = figures_of(RESULT, ROWS)
    assert figures["output_tokens_per_s"] == 3.5
    assert figures["prompt_tokens_per_s"] == 10.0
    assert (figures["ttft_p99_ms"], figures["tpot_p50_ms"]) == (20.0, 1.0)


@pytest.mark.parametrize("lack", [{"completed": 1}, {"total_output_tokens": 6}])
def test_a_run_that_lacks_requests_or_tokens_is_no_result(lack):
    with pytest.raises(LoadFailed, match="of 7 tokens"):
        figures_of(RESULT | lack, ROWS)
