"""What a replica tells every gateway when it becomes ready, and how a gateway addresses it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import get_args

from router.replica_status import ReplicaRole


class BadAnnouncement(ValueError):
    """A replica announced itself in a form that this gateway does not read."""


@dataclass(frozen=True, slots=True)
class ReplicaAnnouncement:
    """Facts that do not change while the replica lives; arrives with its readiness (DESIGN 2.3).

    address: host:port of its token stream. fingerprint and block_size: requests whose block hashes
    were made with others do not fit.
    """

    address: str
    role: ReplicaRole
    block_size: int
    fingerprint: str
    protocol_version: int
    max_model_len: int
    num_blocks: int

    def to_metadata(self) -> dict[str, object]:
        """Plain values, for Serve's record_replica_metadata."""
        return asdict(self)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "ReplicaAnnouncement":
        """What `to_metadata` wrote; BadAnnouncement if a value is missing or of another kind."""
        sizes = ("block_size", "protocol_version", "max_model_len", "num_blocks")
        values: dict[str, object] = {}
        for field in fields(cls):
            value = metadata.get(field.name)
            kind = int if field.name in sizes else str
            if not isinstance(value, kind):
                raise BadAnnouncement(f"{field.name}={value!r}: expected {kind.__name__}")
            values[field.name] = value
        if values["role"] not in get_args(ReplicaRole):
            raise BadAnnouncement(f"role={values['role']!r}: expected one of {ReplicaRole}")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ReplicaRoute:
    """Travels with a request: which replica was chosen, and whose stream the tokens go to."""

    replica_id: str
    gateway_id: str
