"""Makes the private folder of one run of the service: Ray's sessions, sockets, secrets and logs."""

import os
import secrets
import tempfile
from pathlib import Path

# Ray puts unix sockets some 66 characters deeper, and the kernel takes 107.
_LONGEST_PATH = 40


def make_run_folder() -> Path:
    """A new folder that only this user can read, with a path short enough for unix sockets."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) + len("/pagoda-12345678") > _LONGEST_PATH:
        parent = Path("/var/tmp")
    return Path(tempfile.mkdtemp(prefix="pagoda-", dir=parent))


def make_ray_token(folder: Path) -> dict[str, str]:
    """A new secret in `folder`, as the environment by which every Ray process finds it.

    Ray reads these variables when it is imported, so they have to be set before.
    """
    path = folder / "ray-token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
