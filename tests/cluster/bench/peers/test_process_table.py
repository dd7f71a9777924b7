"""The family of a process is found, and its time and memory are told from everybody else's."""

import os
from pathlib import Path

import pytest

from cluster.bench.peers.family_watch import foreign_cores
from cluster.bench.peers.process_table import (
    ProcessLine,
    Usage,
    busy_s,
    family_of,
    parse_line,
    proportional_bytes,
    read_usage,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
STAT = "cpu  100 20 30 900 40 5 6 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"


def stat_line(pid: int, parent: int, *, ticks: tuple[int, ...], pages: int, name: str) -> str:
    middle = "1 1 0 -1 0 0 0 0 0"
    times = " ".join(str(one) for one in ticks)
    return (
        f"{pid} ({name}) S {parent} {middle} {times} 20 0 1 0 500 4096 {pages} 18446744073709551615"
    )


def fake_proc(folder: Path) -> Path:
    lines = {
        10: stat_line(10, 1, ticks=(100, 50, 25, 25), pages=1, name="bench"),
        11: stat_line(11, 10, ticks=(400, 0, 0, 0), pages=10, name="engine (a) b"),
        12: stat_line(12, 11, ticks=(0, 100, 0, 0), pages=100, name="core"),
        99: stat_line(99, 1, ticks=(5000, 0, 0, 0), pages=1000, name="other"),
    }
    for pid, line in lines.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(line)
    (folder / "stat").write_text(STAT)
    (folder / "self").mkdir()
    return folder


def test_a_name_may_hold_spaces_and_parentheses():
    line = parse_line(stat_line(7, 3, ticks=(10, 20, 30, 40), pages=5, name="x (y) z) w"))
    assert line == ProcessLine(7, 3, 100 / os.sysconf("SC_CLK_TCK"), 5 * PAGE)


def test_idle_time_and_waiting_for_disks_are_not_busy():
    assert busy_s(STAT) == pytest.approx(168 / os.sysconf("SC_CLK_TCK"))


def test_children_of_children_belong_to_the_family_and_strangers_do_not():
    lines = [ProcessLine(pid, parent, 0.0, 0) for pid, parent in ((3, 2), (2, 1), (9, 8), (1, 0))]
    assert sorted(one.pid for one in family_of(1, lines)) == [1, 2, 3]
    assert family_of(77, lines) == []


def test_time_is_of_the_whole_family_and_memory_of_the_part_that_counts(tmp_path):
    usage = read_usage(10, 11, at=1.0, proc=fake_proc(tmp_path))
    assert usage.family_s == pytest.approx(700 / os.sysconf("SC_CLK_TCK"))
    assert usage.resident_bytes == 110 * PAGE


def test_shared_pages_count_once_over_all_their_users(tmp_path):
    for pid, kib in ((1, 100), (2, 50)):
        (tmp_path / str(pid)).mkdir()
        text = f"Rss: 300 kB\nPss:  {kib} kB\nPss_Anon: 1 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(text)
    assert proportional_bytes([1, 2, 3], proc=tmp_path) == 150 * 1024


def test_foreign_work_is_what_is_busy_and_not_ours():
    samples = [
        Usage(at=0.0, busy_s=0.0, family_s=0.0, resident_bytes=0),
        Usage(at=10.0, busy_s=18.0, family_s=15.0, resident_bytes=0),
        Usage(at=20.0, busy_s=38.0, family_s=25.0, resident_bytes=0),
    ]
    assert foreign_cores(samples, 0.0, 10.0) == pytest.approx(0.3)
    assert foreign_cores(samples, 10.0, 20.0) == pytest.approx(1.0)
    assert foreign_cores(samples, 5.0, 15.0) == pytest.approx(0.65)


def test_clocks_of_unequal_grain_give_no_foreign_work_below_nothing():
    samples = [
        Usage(at=0.0, busy_s=0.0, family_s=0.0, resident_bytes=0),
        Usage(at=1.0, busy_s=1.99, family_s=2.0, resident_bytes=0),
    ]
    assert foreign_cores(samples, 0.0, 1.0) == 0.0


def test_this_machine_can_be_read():
    usage = read_usage(os.getpid(), os.getpid(), at=0.0)
    assert usage.busy_s > usage.family_s > 0
    assert usage.resident_bytes > 1 << 20
