"""Kernels are compiled once, by whoever comes first, and a machine that cannot says why."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from replicas.kernels.cpu import build
from replicas.kernels.cpu.ablation import switched_off
from replicas.kernels.cpu.build import find_compiler, kernel_cache_dir, library
from replicas.kernels.cpu.native import choose_instruction_set
from replicas.kernels.select import KernelsUnavailable

# Answers --version, and otherwise writes what it was asked for and notes that it was called.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "stand-in $VERSION"; exit 0; fi
echo call >> "$(dirname "$0")/calls"
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A PATH whose only compiler is a stand-in."""
    return with_compiler(tmp_path, COMPILER)


def with_compiler(folder: Path, script: str) -> dict[str, str]:
    tool = folder / "bin" / "g++"
    tool.parent.mkdir()
    tool.write_text(script.replace("$VERSION", "1"))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


def num_calls(folder: Path) -> int:
    return len((folder / "bin" / "calls").read_text().split())


def test_what_was_compiled_is_found_again(
    environ: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=build.__name__):
        first = library(tmp_path / "cache", environ)
    assert first.is_file()
    calls = num_calls(tmp_path)
    assert library(tmp_path / "cache", environ) == first
    assert num_calls(tmp_path) == calls
    assert len(caplog.records) == 1


def test_another_compiler_or_other_sources_get_a_folder_of_their_own(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library(tmp_path / "cache", environ)
    tool = tmp_path / "bin" / "g++"
    tool.write_text(tool.read_text().replace("stand-in 1", "stand-in 2"))
    second = library(tmp_path / "cache", environ)
    other = tmp_path / "csrc"
    other.mkdir()
    for source in build.SOURCES.iterdir():
        (other / source.name).write_text(source.read_text() + "// changed\n")
    monkeypatch.setattr(build, "SOURCES", other)
    assert len({first, second, library(tmp_path / "cache", environ)}) == 3


def test_a_machine_without_a_compiler_takes_what_was_compiled_ahead(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = library(tmp_path / "cache", environ)
    bare = {"PATH": str(tmp_path / "nothing")}
    assert library(tmp_path / "cache", bare) == ahead
    # From other sources it would compute something else.
    other = tmp_path / "csrc"
    other.mkdir()
    (other / "isa.cpp").write_text("// changed")
    monkeypatch.setattr(build, "SOURCES", other)
    with pytest.raises(KernelsUnavailable, match="no C"):
        library(tmp_path / "cache", bare)


def test_compiling_for_an_image_fails_aloud(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicas.kernels.cpu.build"]
    bare = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    ends = [
        subprocess.run([*command, *options], env=bare, capture_output=True, check=False).returncode
        for options in ([], ["--all"])
    ]
    assert ends == [0, 1]


def test_no_compiler_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=r"no C\+\+ compiler \(g\+\+ is not in PATH\)"):
        find_compiler({"PATH": str(tmp_path)})


def test_what_the_compiler_said_is_the_reason(tmp_path: Path) -> None:
    script = COMPILER.replace("echo call", "echo 'x.cpp:1: error: no such thing' >&2; exit 1 #")
    environ = with_compiler(tmp_path, script)
    with pytest.raises(KernelsUnavailable, match=r"g\+\+ failed: x.cpp:1: error: no such thing"):
        library(tmp_path / "cache", environ)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_cache_that_cannot_be_written_is_a_reason(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelsUnavailable, match="cannot build in"):
        library(tmp_path / "file", environ)


@pytest.mark.slow
def test_many_processes_compile_once(environ: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from replicas.kernels.cpu.build import library;"
        "print(library(Path(sys.argv[1]), os.environ))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    running = [
        subprocess.Popen(
            command, env={**os.environ, **environ}, stdout=subprocess.PIPE, cwd=Path.cwd()
        )
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert len(answers) == 1
    alone = tmp_path / "alone"
    before = num_calls(tmp_path)
    library(alone, environ)
    assert num_calls(tmp_path) == 2 * before


def test_the_cache_is_where_other_caches_are(tmp_path: Path) -> None:
    assert kernel_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/pagoda/kernels")
    assert kernel_cache_dir({}) == Path.home() / ".cache" / "pagoda" / "kernels"


class Present:
    """A library on a processor with two instruction sets."""

    def instruction_sets(self) -> list[tuple[str, int]]:
        return [("wide", 2), ("portable", 3)]


def test_the_best_instruction_set_is_taken_unless_another_is_asked_for() -> None:
    assert choose_instruction_set(Present(), "") == 2
    assert choose_instruction_set(Present(), "portable") == 3


def test_an_instruction_set_that_is_not_here_is_named() -> None:
    with pytest.raises(
        KernelsUnavailable, match="PAGODA_CPU_ISA=wider: this processor has wide, portable"
    ):
        choose_instruction_set(Present(), "wider")


def test_parts_are_switched_off_by_name() -> None:
    assert switched_off({}) == frozenset()
    assert switched_off({"PAGODA_CPU_KERNELS_OFF": "fused,rows"}) == {"fused", "rows"}
    with pytest.raises(KernelsUnavailable, match="PAGODA_CPU_KERNELS_OFF=engine: expected fused"):
        switched_off({"PAGODA_CPU_KERNELS_OFF": "engine"})
