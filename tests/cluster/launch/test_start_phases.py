"""Phases of a start: seconds in the log, one line for a failure, a traceback for a fault."""

import logging

import pytest

from cluster.launch.start_phases import StartFailed, StartPhases


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phases(clock):
    return StartPhases(expected=(OSError,), clock=clock)


def test_a_phase_logs_its_seconds(phases, clock, caplog):
    caplog.set_level(logging.INFO)
    with phases.phase("store"):
        clock.now += 1.25
    assert "phase done name='store' seconds=1.2" in caplog.text
    assert phases.elapsed_s == 1.25


def test_an_expected_error_becomes_one_line_with_the_phase(phases):
    with pytest.raises(StartFailed, match="^store: first line$"), phases.phase("store"):
        raise OSError("\nfirst line\nsecond line")


def test_an_error_without_words_is_named_by_its_kind(phases):
    with pytest.raises(StartFailed, match="^store: TimeoutError$"), phases.phase("store"):
        raise TimeoutError


def test_a_fault_of_ours_keeps_its_own_face(phases):
    with pytest.raises(ZeroDivisionError), phases.phase("store"):
        raise ZeroDivisionError
