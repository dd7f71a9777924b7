"""Pairs what is asked with when: the programs of a run and their arrival times."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from loadtest.arrivals import ramp_over_requests, ramp_over_time, steady_arrivals
from loadtest.config import TrafficConfig, WorkloadConfig
from loadtest.datasets import open_dataset
from loadtest.datasets.registry import find_file
from loadtest.program import Program, Step
from loadtest.synthetic import SYNTHETIC


@dataclass(frozen=True, slots=True)
class Arrival:
    """A program, its place in the run, and when it is due in seconds from the start."""

    index: int
    at_s: float
    program: Program


def build_arrivals(workload: WorkloadConfig, traffic: TrafficConfig) -> Iterator[Arrival]:
    """Every arrival of a run in order; the same for the same configs, in every process.

    For a closed loop the times are all 0 and the programs have no end: users take the next.
    Raises FileNotFoundError and ValueError for a dataset that cannot be read.
    """
    programs = _programs(workload, traffic)
    if traffic.num_programs is not None:
        programs = itertools.islice(programs, traffic.num_programs)
    if traffic.arrivals == "users":
        yield from (Arrival(index, 0.0, program) for index, program in enumerate(programs))
        return
    end_s = math.inf if traffic.duration_s is None else traffic.duration_s
    timed = (
        _trace_times(programs, traffic)
        if traffic.arrivals == "trace"
        else zip(_rate_times(traffic), programs, strict=False)
    )
    for index, (at_s, program) in enumerate(timed):
        if at_s >= end_s:
            return
        yield Arrival(index, at_s, program)


def _programs(workload: WorkloadConfig, traffic: TrafficConfig) -> Iterator[Program]:
    rng = random.Random(f"programs {traffic.seed}")
    if workload.dataset in SYNTHETIC:
        return SYNTHETIC[workload.dataset](workload, rng)
    path = find_file(workload.dataset, workload.path, workload.folders)
    programs = open_dataset(workload.dataset, path, workload.shaping, seed=traffic.seed)
    if not programs:
        raise ValueError(f"{path}: no program left within the length limits")
    if workload.num_choices > 1:
        programs = [_with_choices(program, workload.num_choices) for program in programs]
    if traffic.arrivals == "trace":
        return iter(programs)
    if workload.shuffle:
        rng.shuffle(programs)
    return _repeated(programs, traffic)


def _repeated(programs: list[Program], traffic: TrafficConfig) -> Iterator[Program]:
    # A run bounded by time goes round; one bounded by a count stops when the set is used up.
    return iter(programs) if traffic.duration_s is None else itertools.cycle(programs)


def _trace_times(
    programs: Iterator[Program], traffic: TrafficConfig
) -> Iterator[tuple[float, Program]]:
    for program in programs:
        if program.at_s is None:
            raise ValueError("this dataset has no arrival times: give --request-rate")
        yield program.at_s / traffic.speedup, program


def _rate_times(traffic: TrafficConfig) -> Iterator[float]:
    rng = random.Random(f"arrivals {traffic.seed}")
    burstiness = traffic.burstiness
    if traffic.ramp is None:
        return steady_arrivals(traffic.rate_rps, burstiness=burstiness, rng=rng)
    if traffic.duration_s is not None:
        return ramp_over_time(traffic.ramp, traffic.duration_s, burstiness=burstiness, rng=rng)
    assert traffic.num_programs is not None
    return ramp_over_requests(traffic.ramp, traffic.num_programs, burstiness=burstiness, rng=rng)


def _with_choices(program: Program, num_choices: int) -> Program:
    steps = (
        Step(tuple(replace(call, num_choices=num_choices) for call in step.calls), step.pause_s)
        for step in program.steps
    )
    return Program(tuple(steps), program.at_s, program.session)
