"""Speaks to a Redis or Valkey server; the one file that imports `redis`."""

from dataclasses import dataclass

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvstore.errors import StoreUnavailable

Client = redis.Redis


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself. `max_memory_bytes` 0 means that it has no limit."""

    name: str
    version: str
    max_memory_bytes: int
    max_memory_policy: str

    def warnings(self) -> tuple[str, ...]:
        """Why this server, set up as it is, will not serve well as a cache of blocks."""
        if self.max_memory_bytes == 0:
            return ("maxmemory is 0: blocks will fill the machine's memory; set a limit",)
        if self.max_memory_policy == "noeviction":
            return (
                "maxmemory-policy is noeviction: once full, the server refuses every new block; "
                "set allkeys-lru",
            )
        return ()


def connect(url: str, *, timeout_s: float) -> Client:
    """A client for redis://, rediss:// (TLS) or unix:// with user and password; connects lazily.

    A call waits `timeout_s` at most and is not repeated: the caller knows whether a late answer is
    worth having. Raises StoreUnavailable for a URL that cannot be read.
    """
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise StoreUnavailable(f"redis_url={without_secrets(url)}: {error}") from error


def server_info(url: str, *, timeout_s: float) -> ServerInfo:
    """Ping the server and ask who it is; raises StoreUnavailable, which says what is wrong."""
    client = connect(url, timeout_s=timeout_s)
    try:
        client.ping()
        fields = {**client.info("server"), **client.info("memory")}
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"{without_secrets(url)}: {_in_words(error)}") from error
    finally:
        client.close()
    is_valkey = "valkey_version" in fields
    return ServerInfo(
        name="Valkey" if is_valkey else "Redis",
        version=str(fields["valkey_version" if is_valkey else "redis_version"]),
        max_memory_bytes=int(fields.get("maxmemory", 0)),
        max_memory_policy=str(fields.get("maxmemory_policy", "")),
    )


def without_secrets(url: str) -> str:
    """The URL as it may stand in a log: no user, no password, no query."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _in_words(error: redis.RedisError | OSError) -> str:
    if isinstance(error, redis.AuthenticationError):
        return f"the server refuses this user or password ({error})"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"the user lacks a permission ({error})"
    if isinstance(error, redis.TimeoutError):
        return "no answer in time"
    if isinstance(error, redis.InvalidResponse):
        return "what answers there does not speak the Redis protocol"
    return str(error) or type(error).__name__
