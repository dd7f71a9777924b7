"""The meters: speeds that were measured, the latest counting most."""

import pytest

from kvstore.bandwidth_meter import BandwidthMeter, LatencyMeter


def meter(times, **options):
    clock = iter(times)
    return BandwidthMeter(clock=lambda: next(clock), **options)


def test_nothing_is_known_before_the_first_transfer():
    assert meter([0.0]).bytes_per_s is None
    assert LatencyMeter().mean_s is None


def test_a_large_transfer_says_more_than_a_small_one():
    speed = meter([0.0, 0.0, 0.0])
    speed.record(1_000, seconds=1.0)
    speed.record(9_000, seconds=1.0)
    assert speed.bytes_per_s == pytest.approx(5_000)


def test_half_of_what_is_a_half_life_old_is_forgotten():
    speed = meter([0.0, 0.0, 10.0], half_life_s=10.0)
    speed.record(1_000, seconds=1.0)
    speed.record(4_000, seconds=1.0)
    assert speed.bytes_per_s == pytest.approx((500 + 4_000) / 1.5)


def test_a_link_that_slows_down_is_noticed_within_a_few_transfers():
    speed = meter([float(second) for second in range(60)], half_life_s=5.0)
    for _ in range(20):
        speed.record(1_000_000, seconds=0.001)
    for _ in range(20):
        speed.record(1_000_000, seconds=1.0)
    assert speed.bytes_per_s == pytest.approx(1e6, rel=0.1)


def test_transfers_of_nothing_say_nothing():
    speed = meter([0.0])
    speed.record(0, seconds=1.0)
    speed.record(10, seconds=0.0)
    assert speed.bytes_per_s is None


def test_latency_follows_slowly():
    latency = LatencyMeter(weight=0.1)
    latency.record(0.001)
    latency.record(0.011)
    assert latency.mean_s == pytest.approx(0.002)
