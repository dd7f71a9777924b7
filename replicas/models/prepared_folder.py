"""Builds a folder of the model cache whole or not at all, once, however many processes ask."""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replicas.models.prepared_model import PreparedModel

log = logging.getLogger(__name__)

# Part of every key: raise it whenever prepared files change their meaning.
FORMAT_VERSION = 1

Build = Callable[[Path], PreparedModel]


def cache_key(name: str, parts: Iterable[object]) -> str:
    """A folder name that says which model it is and changes with anything in `parts`."""
    text = json.dumps([FORMAT_VERSION, *parts], default=str)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
    return f"{readable[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def file_marks(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Name, size in bytes and time of change in ns of each file: enough to see that one changed."""
    marks = []
    for file in sorted(files):
        status = file.stat()
        marks.append((file.name, status.st_size, status.st_mtime_ns))
    return marks


def load_or_build(cache_dir: Path, key: str, build: Build) -> PreparedModel:
    """The prepared model under `key`, built by `build(draft folder)` if it is not there.

    The draft is renamed into place when whole, so a reader never sees half of one. A second
    process waits for the first and takes what it made; a draft left by one that died is removed.
    """
    folder = cache_dir / key
    ready = _load(folder)
    if ready is not None:
        return ready
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{key}.lock"):
        ready = _load(folder)
        if ready is not None:
            return ready
        draft = cache_dir / f".{key}.draft"
        # Whoever wrote these is dead: the lock is ours.
        for ruin in (draft, folder):
            shutil.rmtree(ruin, ignore_errors=True)
        draft.mkdir()
        build(draft).save()
        draft.rename(folder)
        _sync_folder(cache_dir)
    return PreparedModel.load(folder)


def _load(folder: Path) -> PreparedModel | None:
    try:
        return PreparedModel.load(folder)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        log.warning("prepared model unreadable folder=%s error=%s", folder, error)
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock with the process, so a crash leaves nothing to clean up.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
