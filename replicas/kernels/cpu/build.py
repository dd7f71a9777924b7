"""Compiles the kernels once for this machine's compiler and torch, however many processes ask.

g++ is called directly, one object file per instruction set, and without torch's own build helper
and its catch-all header, which would take four times as long.
"""

import argparse
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from replicas.kernels.select import KernelsUnavailable

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
LIBRARY_NAME = "pagoda_cpu.so"
COMPILE_TIMEOUT_S = 300.0

_COMMON_FLAGS = ("-std=c++20", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-DNDEBUG")
# A product and its sum may become one instruction; nothing else may be reordered.
_KERNEL_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_AVX512_FLAGS = (
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma"),
    "-mprefer-vector-width=512",
)
_VNNI_FLAGS = ("-mavx512vnni",)
_INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = {
    "avx512_bf16": (*_AVX512_FLAGS, *_VNNI_FLAGS, "-mavx512bf16"),
    "avx512_vnni": (*_AVX512_FLAGS, *_VNNI_FLAGS),
    "avx512": _AVX512_FLAGS,
    "avx2": ("-mavx2", "-mfma"),
    "portable": (),
}
_BOUND_TO_TORCH = ("bindings", "decoder_layers")


@dataclass(frozen=True, slots=True)
class Compiler:
    """path of g++ (or what CXX names) and the version it states."""

    path: str
    version: str


def kernel_cache_dir(environ: Mapping[str, str]) -> Path:
    """Folder of compiled kernels: pagoda/kernels in $XDG_CACHE_HOME or ~/.cache."""
    home = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pagoda" / "kernels"


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """The compiler that CXX names, or g++; KernelsUnavailable if it cannot be run."""
    asked = environ.get("CXX") or "g++"
    path = shutil.which(asked, path=environ.get("PATH"))
    if path is None:
        raise KernelsUnavailable(f"kernels=cpu: no C++ compiler ({asked} is not in PATH)")
    return Compiler(path, _run([path, "--version"]).splitlines()[0])


def library(cache_dir: Path, environ: Mapping[str, str]) -> Path:
    """The compiled library, built first if `cache_dir` lacks it.

    Where there is no compiler, as in a container image, one that was compiled ahead from these
    sources is taken, whoever compiled it. Raises KernelsUnavailable with the reason if it can
    neither be found nor built.
    """
    try:
        compiler = find_compiler(environ)
    except KernelsUnavailable:
        if (ready := _compiled_ahead(cache_dir)) is None:
            raise
        return ready
    folder = cache_dir / _key(compiler)
    built = folder / LIBRARY_NAME
    if built.is_file():
        return built
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            if not built.is_file():
                _build(compiler, folder, built)
    except OSError as error:
        raise KernelsUnavailable(f"kernels=cpu: cannot build in {folder}: {error}") from error
    return built


def _compiled_ahead(cache_dir: Path) -> Path | None:
    found = sorted(cache_dir.glob(f"{_sources_key()}-*/{LIBRARY_NAME}"))
    return found[0] if found else None


def _build(compiler: Compiler, folder: Path, built: Path) -> None:
    started = time.perf_counter()
    units = list(_units(compiler, folder))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_run, (command for command, _ in units)))
    draft = folder / f"{LIBRARY_NAME}.draft"
    objects = [str(made) for _, made in units]
    libraries = f"-L{Path(torch.__file__).parent / 'lib'}"
    _run(
        [compiler.path, "-shared", "-fopenmp", *objects, libraries]
        + ["-lc10", "-ltorch_cpu", "-o", str(draft)]
    )
    # Whole or not at all: a reader never sees half of it.
    draft.rename(built)
    for made in objects:
        Path(made).unlink()
    log.info(
        "cpu kernels compiled seconds=%.1f compiler=%r library=%s",
        time.perf_counter() - started,
        compiler.version,
        built,
    )


def _units(compiler: Compiler, folder: Path) -> Iterator[tuple[list[str], Path]]:
    """Each object file with the command that makes it, the slowest first."""
    include = Path(torch.__file__).parent / "include"
    paths = [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    for name in _BOUND_TO_TORCH:
        yield _unit(compiler, folder, name, name, ["-O2", abi, *paths])
    for name, flags in _instruction_sets().items():
        own = [*_KERNEL_FLAGS, *flags, f"-DPAGODA_ISA={name}"]
        yield _unit(compiler, folder, "isa", f"isa_{name}", own)


def _unit(
    compiler: Compiler, folder: Path, source: str, name: str, flags: list[str]
) -> tuple[list[str], Path]:
    made = folder / f"{name}.o"
    path = str(SOURCES / f"{source}.cpp")
    return [compiler.path, *_COMMON_FLAGS, *flags, "-c", path, "-o", str(made)], made


def _instruction_sets() -> Mapping[str, tuple[str, ...]]:
    if platform.machine() in ("x86_64", "AMD64"):
        return _INSTRUCTION_SETS
    return {"portable": ()}


def _key(compiler: Compiler) -> str:
    """Changes with the sources, the flags, torch, and, behind the dash, the compiler."""
    return f"{_sources_key()}-{hashlib.sha256(compiler.version.encode()).hexdigest()[:8]}"


def _sources_key() -> str:
    """Changes with the sources, the flags and torch."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(f"{source.name}\0".encode() + source.read_bytes())
    flags = [_COMMON_FLAGS, _KERNEL_FLAGS, sorted(_instruction_sets().items())]
    digest.update(json.dumps([flags, torch.__version__]).encode())
    return digest.hexdigest()[:24]


def _run(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailable(f"kernels=cpu: {command[0]}: {error}") from error
    if ended.returncode != 0:
        said = next((line for line in ended.stderr.splitlines() if "error" in line), ended.stderr)
        raise KernelsUnavailable(f"kernels=cpu: {Path(command[0]).name} failed: {said.strip()}")
    return ended.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock with the process, so a crash leaves nothing to clean up.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """`python -m replicas.kernels.cpu.build`: compile ahead, so that no start has to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all",
        action="store_true",
        help="for every instruction set, so that any machine can take the result; what cannot be "
        "compiled is a failure then (every set is compiled without it too)",
    )
    must_succeed = parser.parse_args().all
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(library(kernel_cache_dir(os.environ), os.environ))
    except KernelsUnavailable as error:
        print(f"{error}; plain torch will be used", file=sys.stderr)
        return 1 if must_succeed else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
