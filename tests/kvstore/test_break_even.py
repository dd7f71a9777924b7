"""Swap or recompute, held against the figures of lecture 10 for the reference machine.

H100 with a 64e9 B/s link and 494.5e12 FLOP/s of prefill; a 7B model of 32 layers with 32 heads of
128, with 32 (MHA) or 8 (GQA-8) key-value heads.
"""

import pytest

from kvstore.break_even import (
    Estimate,
    MeasuredSpeeds,
    PrefillCost,
    break_even_bytes_per_s,
    crossover_tokens,
    fetch_or_recompute,
    swap_or_recompute,
)

MODEL = PrefillCost.of_model(
    num_parameters=6_738_149_376, num_layers=32, num_heads=32, head_dim=128
)
RATE = 494.5e12
MHA_BYTES = 524_288
GQA8_BYTES = 131_072


def speeds(link=64e9, *, round_trip_s=0.0):
    return MeasuredSpeeds(RATE, link, link, round_trip_s)


def swap(num_tokens, *, kv_bytes=MHA_BYTES, link=64e9):
    return swap_or_recompute(
        num_tokens, kv_bytes_per_token=kv_bytes, cost=MODEL, speeds=speeds(link)
    )


def break_even(num_tokens, *, kv_bytes=MHA_BYTES):
    return break_even_bytes_per_s(
        num_tokens, kv_bytes_per_token=kv_bytes, cost=MODEL, prefill_flops_per_s=RATE
    )


# exact, as printed, and how far the print's rounding may be from it
@pytest.mark.parametrize(
    ("num_tokens", "exact_flops", "exact_s", "printed_s"),
    [
        (512, 7_037.3e9, 0.014231, 0.0142),
        (4096, 63_995e9, 0.12941, 0.129),
        (8192, 145_582e9, 0.2944, 0.294),
        (16384, 361_533e9, 0.73111, 0.731),
    ],
)
def test_prefill_costs_what_the_lectures_say(num_tokens, exact_flops, exact_s, printed_s):
    assert MODEL.flops(num_tokens) == pytest.approx(exact_flops, rel=1e-5)
    recompute_s = swap(num_tokens).recompute_s
    assert recompute_s == pytest.approx(exact_s, rel=1e-4)
    assert recompute_s == pytest.approx(printed_s, rel=0.005)


def test_4k_tokens_of_mha_swap_in_67_ms_and_recompute_in_129():
    estimate = swap(4096)
    assert estimate.move_s == pytest.approx(0.06710886, rel=1e-6)
    assert round(1000 * estimate.move_s) == 67
    assert round(1000 * estimate.recompute_s) == 129
    assert estimate.recompute_s / estimate.move_s == pytest.approx(1.9284, rel=1e-4)
    assert estimate.choice == "move"


def test_gqa_makes_swapping_cheap_and_leaves_recompute_alone():
    estimate = swap(4096, kv_bytes=GQA8_BYTES)
    assert estimate.recompute_s / estimate.move_s == pytest.approx(7.71365, rel=1e-5)
    assert estimate.recompute_s == swap(4096).recompute_s


def test_16k_tokens_of_gqa_swap_10_9_times_faster():
    estimate = swap(16384, kv_bytes=GQA8_BYTES)
    assert round(1000 * estimate.move_s) == 67
    assert estimate.recompute_s / estimate.move_s == pytest.approx(10.8944, rel=1e-5)


@pytest.mark.parametrize(
    ("num_tokens", "kv_bytes", "exact", "printed"),
    [
        (4096, MHA_BYTES, 33.19e9, 33.3e9),
        (4096, GQA8_BYTES, 8.297e9, 8.3e9),
        (16384, GQA8_BYTES, 5.875e9, 5.9e9),
    ],
)
def test_the_break_even_bandwidth_is_the_lectures(num_tokens, kv_bytes, exact, printed):
    bandwidth = break_even(num_tokens, kv_bytes=kv_bytes)
    assert bandwidth == pytest.approx(exact, rel=2e-4)
    assert bandwidth == pytest.approx(printed, rel=0.005)


def test_at_the_break_even_bandwidth_both_cost_the_same():
    estimate = swap(4096, link=break_even(4096))
    assert estimate.move_s == pytest.approx(estimate.recompute_s, rel=1e-12)


def test_at_32_gb_a_second_mha_crosses_over_at_5202_tokens():
    # The lecture prints 2,600; the formula printed beside it,
    # 2 * 524288 / 32e9 * 494.5e12 = 2N + 524288 * S, gives twice that.
    crossover = crossover_tokens(kv_bytes_per_token=MHA_BYTES, cost=MODEL, speeds=speeds(32e9))
    assert round(crossover) == 5202
    assert swap(5100, link=32e9).choice == "recompute"
    assert swap(2600, link=32e9).choice == "recompute"
    assert swap(5300, link=32e9).choice == "move"


def test_over_the_reference_link_swapping_always_wins():
    assert crossover_tokens(kv_bytes_per_token=MHA_BYTES, cost=MODEL, speeds=speeds()) == 0.0


def test_the_crossover_is_where_the_choice_changes_with_a_round_trip_too():
    slow = speeds(30e9, round_trip_s=0.02)
    at = crossover_tokens(kv_bytes_per_token=MHA_BYTES, cost=MODEL, speeds=slow)

    def choice(num_tokens):
        return swap_or_recompute(
            num_tokens, kv_bytes_per_token=MHA_BYTES, cost=MODEL, speeds=slow
        ).choice

    assert (choice(int(at) - 1), choice(int(at) + 2)) == ("recompute", "move")


def test_without_attention_a_slow_link_never_wins():
    flat = PrefillCost(linear_flops=1e9, attention_flops=0.0)
    slow, fast = MeasuredSpeeds(1e12, 1e6, 1e6, 0.01), MeasuredSpeeds(1e12, 1e12, 1e12, 0.01)
    assert crossover_tokens(kv_bytes_per_token=1000, cost=flat, speeds=slow) is None
    assert crossover_tokens(kv_bytes_per_token=1000, cost=flat, speeds=fast) == pytest.approx(
        10.0, rel=1e-3
    )


def test_a_fetch_goes_one_way_and_only_for_what_is_not_here():
    estimate = fetch_or_recompute(
        4096,
        num_cached_tokens=1024,
        kv_bytes_per_token=MHA_BYTES,
        cost=MODEL,
        speeds=speeds(10e9, round_trip_s=0.001),
    )
    assert estimate.move_s == pytest.approx(0.001 + 3072 * MHA_BYTES / 10e9)
    rest_flops = MODEL.flops(4096) - MODEL.flops(1024)
    assert estimate.recompute_s == pytest.approx(rest_flops / RATE)


def test_a_draw_is_computed():
    assert Estimate(move_s=1.0, recompute_s=1.0).choice == "recompute"
