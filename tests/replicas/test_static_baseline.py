"""The static schedule of lecture 11: what is counted, and what its step counts promise."""

from replicas.bench.static_baseline import continuous_steps, run_static, static_steps
from replicas.bench.workload import WorkloadRequest
from tests.replicas.engine_harness import engine, prompt

REQUESTS = [WorkloadRequest(tuple(prompt(4, seed=i)), n) for i, n in enumerate((1, 8, 2, 3))]


def test_a_static_batch_runs_until_its_longest_member_ends():
    assert static_steps(REQUESTS, 2) == 8 + 3
    assert continuous_steps(REQUESTS, 2) == 8


def test_padded_rows_are_computed_and_do_not_count():
    target = engine()
    run = run_static(target, REQUESTS, b"root", batch_size=2)
    assert run.num_useful_tokens == 14
    assert run.num_steps == 11
    assert target.stats.generated_tokens_total == 2 * 8 + 2 * 3
