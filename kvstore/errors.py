"""What can go wrong with a store, in words that the one who starts it can act on."""

from typing import Literal

FailureKind = Literal["timeout", "connection", "refused", "busy", "moved", "full", "protocol"]
"""timeout: no answer in time. connection: nobody there, or it hung up. refused: a user, password
or permission. busy: loading, or a cluster without a quorum. moved: another node holds the key.
full: no memory left. protocol: an answer that makes no sense."""

CorruptionKind = Literal["truncated", "damaged", "foreign", "other_tokens"]
"""truncated: bytes are missing or too many. damaged: a checksum or a name does not fit.
foreign: whole, but of another format, model or layout. other_tokens: whole, but not the tokens that
were asked for."""


class StoreUnavailable(Exception):
    """The store cannot be reached, refuses us, or is no such server; the message says which."""

    def __init__(self, message: str, *, kind: FailureKind = "connection") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class CorruptBlock(Exception):
    """A stored value is not the block it should be; the message names what differs."""

    def __init__(self, message: str, *, kind: CorruptionKind) -> None:
        super().__init__(message)
        self.kind: CorruptionKind = kind


class CorruptTable(Exception):
    """A stored value is no block table; the message says why."""
