"""Results survive being written and read, and a file of another make is refused."""

import pytest

from cluster.bench.peers.results import Results, TurnResult, WorkloadRun


def some_results() -> Results:
    run = WorkloadRun("W1", 1.0, 2.0, {"seconds": 1.0}, 0.05)
    turn = TurnResult("vllm", 2, 1, ("W1", "W3"), (run,), "", {"torch": "2.13.0"}, {"threads": 2})
    return Results({"cores": 2}, {"kv_gib": 4}, {"openvino": "not installed"}, [turn])


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "folder" / "results.json"
    some_results().save(path)
    assert Results.load(path) == some_results()


def test_nothing_is_left_beside_a_file_that_was_written(tmp_path):
    some_results().save(tmp_path / "results.json")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_another_format_is_refused_by_its_number(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"format": 0}')
    with pytest.raises(ValueError, match="format 0, expected 1"):
        Results.load(path)
