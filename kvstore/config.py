"""Settings of the block store; a bad value names itself and what was expected."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where blocks and tables outside the engines are kept.

    redis_url: any server that speaks the protocol, as redis://, rediss:// or unix://, with an ACL
        user and a password if it asks for them; empty starts an embedded Valkey.
    store_memory_bytes: most memory of the embedded Valkey; it drops what was used least recently
        beyond that.
    store_timeout_s: longest wait for an answer of the server.
    """

    redis_url: str = field(default="", repr=False)
    store_memory_bytes: int = 256 * 1024 * 1024
    store_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        schemes = ("redis://", "rediss://", "unix://")
        if self.redis_url and not self.redis_url.startswith(schemes):
            scheme = self.redis_url.split(":", 1)[0]
            raise ValueError(f"redis_url={scheme}:...: expected redis://, rediss:// or unix://")
        if self.store_memory_bytes < 4 * 1024 * 1024:
            raise ValueError(
                f"store_memory_bytes={self.store_memory_bytes}: expected at least 4 MiB"
            )
        if not self.store_timeout_s > 0.0:
            raise ValueError(
                f"store_timeout_s={self.store_timeout_s}: expected more than 0 seconds"
            )
