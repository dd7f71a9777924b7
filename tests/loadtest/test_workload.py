"""Programs meet their arrival times, the same in every process."""

import itertools
from pathlib import Path

import pytest

from loadtest.config import TrafficConfig, WorkloadConfig
from loadtest.worker import Share
from loadtest.workload import build_arrivals

DATA = Path(__file__).parent / "data"
AZURE = WorkloadConfig(dataset="azure", path=DATA / "azure.csv")


def test_a_replay_keeps_the_traces_times_divided_by_the_speedup() -> None:
    traffic = TrafficConfig(arrivals="trace", speedup=10.0)
    times = [arrival.at_s for arrival in build_arrivals(AZURE, traffic)]
    assert times == pytest.approx([0.0, 0.4314579, 6.0], abs=1e-5)


def test_a_replay_stops_at_the_duration() -> None:
    traffic = TrafficConfig(arrivals="trace", speedup=10.0, num_programs=None, duration_s=5.0)
    assert len(list(build_arrivals(AZURE, traffic))) == 2


def test_a_replay_without_times_says_what_to_do() -> None:
    workload = WorkloadConfig(dataset="lengths", path=DATA / "lengths.csv")
    with pytest.raises(ValueError, match="--request-rate"):
        list(build_arrivals(workload, TrafficConfig(arrivals="trace")))


def test_a_duration_goes_round_the_set_and_a_count_does_not() -> None:
    counted = TrafficConfig(rate_rps=100, num_programs=50)
    timed = TrafficConfig(rate_rps=100, num_programs=None, duration_s=1.0)
    assert len(list(build_arrivals(AZURE, counted))) == 3
    assert 60 < len(list(build_arrivals(AZURE, timed))) < 140


def test_shares_of_all_processes_make_the_whole_and_nothing_twice() -> None:
    traffic = TrafficConfig(rate_rps=10, num_programs=100, seed=4)
    whole = list(build_arrivals(WorkloadConfig(), traffic))
    shares = [
        list(Share(index, 3).arrivals_of(build_arrivals(WorkloadConfig(), traffic)))
        for index in range(3)
    ]
    together = sorted(itertools.chain(*shares), key=lambda arrival: arrival.index)
    assert together == whole


def test_another_seed_is_another_load() -> None:
    first, second = (
        list(build_arrivals(WorkloadConfig(), TrafficConfig(rate_rps=5, num_programs=5, seed=seed)))
        for seed in (0, 1)
    )
    assert [a.at_s for a in first] != [a.at_s for a in second]
    assert [a.program for a in first] != [a.program for a in second]


def test_users_are_shared_out_without_a_rest() -> None:
    assert [Share(index, 3).part_of(10) for index in range(3)] == [4, 3, 3]


@pytest.mark.parametrize(
    "options",
    [{"num_programs": None}, {"num_programs": None, "duration_s": 5.0}, {"cancel_ratio": 1.5}],
)
def test_traffic_without_an_end_or_sense_is_refused(options: dict[str, float | None]) -> None:
    with pytest.raises(ValueError):
        TrafficConfig(**options)  # type: ignore[arg-type]
