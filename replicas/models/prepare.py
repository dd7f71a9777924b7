"""Makes a model ready once: finds it, checks it, converts it if need be, and names it."""

import argparse
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from replicas.models.demo_model import (
    DEMO_NAME,
    DEMO_SHA256,
    DEMO_SPEC,
    check_demo_digest,
    find_demo_gguf,
)
from replicas.models.fingerprint import file_digest, fingerprint
from replicas.models.json_file import read_json
from replicas.models.model_config import ModelConfig
from replicas.models.prepared_folder import cache_key, file_marks, load_or_build
from replicas.models.prepared_model import PreparedModel
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.supported import ModelError, ModelUnavailable
from replicas.models.weight_files import weight_files

log = logging.getLogger(__name__)


def prepare_model(spec: str, *, cache_dir: Path, progress: bool = True) -> PreparedModel:
    """Make the model that `spec` names ready to be served and return where it is.

    spec: "demo", a local folder (safetensors or GGUF), a local .gguf file, or a hub id
    (`owner/name`, `owner/name@revision`, `owner/name/file.gguf`). What is already in `cache_dir`
    is reused without importing torch or transformers. Safe in several processes at once.
    Raises UnsupportedModel or ModelUnavailable (both ModelError, a ValueError).
    """
    started_at = time.monotonic()
    shown = StartUpProgress(is_shown=progress)
    cache_dir = cache_dir.absolute()
    model = _prepare(spec, cache_dir=cache_dir, progress=shown)
    log.info(
        "model ready name=%s architecture=%s folder=%s seconds=%.2f",
        model.name,
        model.architecture,
        model.folder,
        time.monotonic() - started_at,
    )
    return model


def _prepare(spec: str, *, cache_dir: Path, progress: StartUpProgress) -> PreparedModel:
    if spec == DEMO_SPEC:
        return _prepare_demo(cache_dir, progress)
    local = Path(spec).expanduser().absolute()
    if local.exists():
        return _prepare_local(local, local.resolve().name, cache_dir, progress)
    # Imported late: the hub's client is needed for hub ids alone.
    from replicas.models.hub_download import HubModel, download

    hub_model = HubModel.parse(spec)
    if hub_model is None:
        raise ModelUnavailable(f"model {spec}: no such folder or file, and not a hub id")
    return _prepare_local(download(hub_model), hub_model.repository, cache_dir, progress)


def _prepare_demo(cache_dir: Path, progress: StartUpProgress) -> PreparedModel:
    def build(draft: Path) -> PreparedModel:
        gguf = find_demo_gguf()
        check_demo_digest(_digest(gguf, progress), path=gguf)
        return _build_from_gguf(gguf, DEMO_NAME, draft, progress)

    return load_or_build(cache_dir, cache_key(DEMO_NAME, [DEMO_SHA256]), build)


def _prepare_local(
    path: Path, name: str, cache_dir: Path, progress: StartUpProgress
) -> PreparedModel:
    gguf = _gguf_in(path)
    if gguf is not None:
        key = cache_key(name, [str(gguf), file_marks([gguf, *_small_files(gguf.parent)])])
        return load_or_build(
            cache_dir, key, lambda draft: _build_from_gguf(gguf, name, draft, progress)
        )
    config = path / "config.json"
    if not config.is_file():
        raise ModelUnavailable(f"{path}: holds neither a config.json nor a GGUF file")
    ModelConfig.from_values(read_json(config), name=name)
    weights = weight_files(path)
    key = cache_key(name, [str(path), file_marks([*weights, *_small_files(path)])])
    return load_or_build(
        cache_dir, key, lambda draft: _build_from_safetensors(path, name, draft, progress)
    )


def _gguf_in(path: Path) -> Path | None:
    """The GGUF file to convert, if that is what `path` is; None for a folder of safetensors."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnavailable(f"{path}: expected a folder or a .gguf file")
        return path
    found = sorted(path.glob("*.gguf"))
    if not found or (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return None
    firsts = [file for file in found if "-of-" not in file.name or "-00001-of-" in file.name]
    if len(firsts) != 1:
        names = ", ".join(file.name for file in found)
        raise ModelUnavailable(f"{path}: name one of its GGUF files: {names}")
    return firsts[0]


def _small_files(folder: Path) -> list[Path]:
    """Everything beside the weights that the prepared folder is made from."""
    found = [*folder.glob("*.json"), *folder.glob("*.jinja"), *folder.glob("*.model")]
    return [*found, *folder.glob("merges.txt"), *folder.glob("additional_chat_templates/*.jinja")]


def _build_from_gguf(
    gguf: Path, name: str, draft: Path, progress: StartUpProgress
) -> PreparedModel:
    from replicas.models.gguf_conversion import convert_gguf, open_gguf

    convert_gguf(open_gguf(gguf, name=name), draft, progress=progress)
    return _describe(draft, name, draft, progress)


def _build_from_safetensors(
    source: Path, name: str, draft: Path, progress: StartUpProgress
) -> PreparedModel:
    from replicas.models.tokenizer_files import copy_tokenizer_files

    shutil.copyfile(source / "config.json", draft / "config.json")
    copy_tokenizer_files(source, draft, name=name)
    return _describe(draft, name, source, progress)


def _describe(
    draft: Path, name: str, weights_dir: Path, progress: StartUpProgress
) -> PreparedModel:
    from replicas.models.model_description import describe

    weights = weight_files(weights_dir)
    total_bytes = sum(file.stat().st_size for file in weights)
    with progress.phase(f"hash {name}", total_bytes=total_bytes) as on_bytes:
        named = fingerprint(read_json(draft / "config.json"), weights, on_bytes=on_bytes)
    return describe(draft, name=name, weights_dir=weights_dir, fingerprint=named)


def _digest(path: Path, progress: StartUpProgress) -> str:
    with progress.phase(f"check {path.name}", total_bytes=path.stat().st_size) as on_bytes:
        return file_digest(path, on_bytes=on_bytes)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m replicas.models.prepare SPEC --cache-dir DIR`: prints the prepared folder."""
    parser = argparse.ArgumentParser(description="Make a model ready to be served.")
    parser.add_argument("spec", help='"demo", a folder, a .gguf file, or a Hugging Face hub id')
    parser.add_argument("--cache-dir", type=Path, default=Path(".cache/models"))
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        model = prepare_model(options.spec, cache_dir=options.cache_dir, progress=not options.quiet)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(model.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
