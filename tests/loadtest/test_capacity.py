"""The search finds the highest rate that still meets its target."""

import pytest

from loadtest.capacity import CapacitySearch, Probe, find_capacity


def server_of(limit_rps: float, saturation: str = "none"):  # type: ignore[no-untyped-def]
    def measure(rate: float) -> Probe:
        share = 1.0 if rate <= limit_rps else limit_rps / rate * 0.5
        return Probe(rate, rate * share, share, "none" if rate <= limit_rps else saturation)

    return measure


@pytest.mark.parametrize(("limit", "first"), [(13.7, 1.0), (13.7, 100.0), (0.3, 1.0), (64.0, 64.0)])
def test_the_limit_is_found_from_either_side(limit: float, first: float) -> None:
    capacity = find_capacity(CapacitySearch(first_rate_rps=first, max_probes=20), server_of(limit))
    assert capacity.best is not None
    assert limit / 1.1 <= capacity.best.rate_rps <= limit


def test_a_server_that_never_passes_has_no_capacity() -> None:
    search = CapacitySearch(max_probes=5)
    capacity = find_capacity(search, lambda rate: Probe(rate, 0.0, 0.0, "refusals"))
    assert capacity.best is None
    assert [probe.rate_rps for probe in capacity.probes] == [1, 0.5, 0.25, 0.125, 0.0625]


def test_a_growing_backlog_does_not_pass_though_its_requests_still_do() -> None:
    def measure(rate: float) -> Probe:
        return Probe(rate, rate, 1.0, "growing_backlog" if rate > 10 else "none")

    capacity = find_capacity(CapacitySearch(), measure)
    assert capacity.best is not None
    assert 9 < capacity.best.rate_rps <= 10


def test_finer_precision_takes_more_probes() -> None:
    coarse, fine = (
        find_capacity(CapacitySearch(precision=p, max_probes=40), server_of(13.7))
        for p in (0.2, 0.01)
    )
    assert len(fine.probes) > len(coarse.probes)
