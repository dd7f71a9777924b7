"""Leaves the address of an embedded store where only its owner finds it, for `pagoda store`."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_FILE = "store-url"


def leave_store_url(folder: Path, url: str) -> None:
    """Write the URL, password and all, into a run's private folder."""
    descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(url)


def store_urls_of_runs(parents: Iterable[Path] | None = None) -> list[str]:
    """URLs of the embedded stores of this user's running services, in no order.

    parents: where run folders are made. A file that somebody else owns is not believed.
    """
    urls: list[str] = []
    for parent in parents or (Path(tempfile.gettempdir()), Path("/var/tmp")):
        for path in parent.glob(f"pagoda-*/{_FILE}"):
            try:
                if path.stat().st_uid == os.getuid():
                    urls.append(path.read_text())
            except OSError:
                # Another user's, or a service that has just ended.
                continue
    return list(dict.fromkeys(urls))
