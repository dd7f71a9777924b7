"""The secret by which the parts of one cluster know each other on planes that are not Ray's."""

import hashlib
import hmac
from collections.abc import Mapping

from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

VARIABLE = "PAGODA_CLUSTER_SECRET"
_LEAST_CHARACTERS = 16
_PURPOSE = b"pagoda cluster secret 1"


class NoClusterSecret(RuntimeError):
    """Neither a secret nor a Ray token was given; open planes are not offered instead."""


def cluster_secret(environ: Mapping[str, str]) -> str:
    """The secret from the environment, or one that follows from the Ray cluster's own token.

    Whoever holds Ray's token may already run code in the cluster, so deriving from it gives
    nothing away, works on every node without another thing to distribute, and does not put the
    token itself on the wire. Raises NoClusterSecret.
    """
    given = environ.get(VARIABLE, "")
    if given:
        if len(given) < _LEAST_CHARACTERS:
            raise NoClusterSecret(f"{VARIABLE}: expected at least {_LEAST_CHARACTERS} characters")
        return given
    token = AuthenticationTokenLoader.instance().get_raw_token()
    if not token:
        raise NoClusterSecret(
            f"no cluster secret: start Ray with RAY_AUTH_MODE=token, or set {VARIABLE}"
        )
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()
