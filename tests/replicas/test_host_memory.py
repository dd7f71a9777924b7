"""Memory: the machine's, or less where a container says so."""

from replicas.host_memory import host_memory


def test_available_memory_is_what_the_kernel_says(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:      2048 kB\n")
    assert host_memory(meminfo=meminfo).available_bytes == 2 * 1024 * 1024


def test_a_container_limit_bounds_the_total(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("1000000\n")
    assert host_memory(limit_file=limit).total_bytes == 1_000_000
    limit.write_text("max\n")
    assert host_memory(limit_file=limit).total_bytes > 1_000_000


def test_a_system_without_these_files_still_answers(tmp_path):
    memory = host_memory(meminfo=tmp_path / "absent", limit_file=tmp_path / "absent")
    assert 0 < memory.available_bytes <= memory.total_bytes
