"""Names the blocks of a request so that nobody else finds them, for engines that share none."""

import hashlib
from dataclasses import replace

from replicas.request import EngineRequest


def with_private_root(request: EngineRequest) -> EngineRequest:
    """Blocks named so that only this request's own choices can share them.

    Both halves of a hand-off must give its blocks the same names.
    """
    salt = f"{request.request_id}/{request.attempt}"
    if request.handoff is not None:
        salt = f"{request.request_id}/handoff/{request.handoff.generation}"
    root = hashlib.sha256(request.root + salt.encode()).digest()
    return replace(request, root=root, block_hashes=())
