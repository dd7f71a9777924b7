"""Settings of the block store; a bad value names itself and what was expected."""

from dataclasses import dataclass, field
from typing import Literal

from kvstore.redis_url import parse_redis_url


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where blocks and tables outside the engines are kept.

    redis_url: any server that speaks the protocol, as redis://, rediss:// (TLS), unix://,
        redis+sentinel://host,host/service or redis+cluster://host,host, with an ACL user and a
        password if it asks for them; empty starts an embedded Valkey.
    redis_ca_file: who must have signed a TLS server's certificate; empty takes the system's list.
    redis_cert_file: our own certificate, for a TLS server that asks for one.
    redis_key_file: the key of our own certificate.
    store_memory_bytes: most memory of the embedded Valkey; it drops what was used least recently
        beyond that.
    store_timeout_s: longest that connecting, a write or an admin command waits for the server.
    store_fetch_timeout_s: longest that a request waits for blocks; what has not arrived by then is
        computed.
    store_connections: connections, and threads, of one replica.
    store_in_flight_bytes: most bytes of blocks that are on their way at once; writes that queue up
        beyond as much again are dropped.
    store_ttl_s: how long a block is kept after it was last written or pinned; 0 has no end.
    store_lease_ttl_s: how long a pin lasts without a heartbeat.
    store_compression: form of K and V in the store: as they are, or one byte a number with one
        scale per head, at a small error.
    """

    redis_url: str = field(default="", repr=False)
    redis_ca_file: str = ""
    redis_cert_file: str = ""
    redis_key_file: str = field(default="", repr=False)
    store_memory_bytes: int = 256 * 1024 * 1024
    store_timeout_s: float = 5.0
    store_fetch_timeout_s: float = 1.0
    store_connections: int = 2
    store_in_flight_bytes: int = 64 * 1024 * 1024
    store_ttl_s: float = 86_400.0
    store_lease_ttl_s: float = 30.0
    store_compression: Literal["none", "int8", "fp8"] = "none"

    def __post_init__(self) -> None:
        if self.redis_url:
            parse_redis_url(self.redis_url)
        for name in ("store_memory_bytes", "store_in_flight_bytes"):
            if getattr(self, name) < 4 * 1024 * 1024:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 4 MiB")
        for name in ("store_timeout_s", "store_fetch_timeout_s", "store_lease_ttl_s"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected more than 0 seconds")
        if not self.store_ttl_s >= 0.0:
            raise ValueError(f"store_ttl_s={self.store_ttl_s}: expected 0 (no end) or more seconds")
        if not 1 <= self.store_connections <= 64:
            raise ValueError(f"store_connections={self.store_connections}: expected 1 to 64")
        if bool(self.redis_cert_file) != bool(self.redis_key_file):
            raise ValueError("redis_cert_file and redis_key_file: expected both or neither")
        if self.store_compression not in ("none", "int8", "fp8"):
            raise ValueError(
                f"store_compression={self.store_compression!r}: expected none, int8 or fp8"
            )
