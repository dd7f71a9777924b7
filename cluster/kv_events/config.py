"""Settings of the events that routers of others read; off by default, ours need none of it."""

from dataclasses import dataclass
from typing import Literal, get_args

HashForm = Literal["int", "bytes"]


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Prefix-cache events on ZeroMQ in vLLM's format; they need the extra pagoda-serve[kv-events].

    kv_events_endpoint: where each replica publishes, such as tcp://*:5557; the next free port if
        that is taken, since replicas may share a machine. Empty publishes nothing.
    kv_events_replay_endpoint: where readers ask for events they missed, likewise; empty for none.
    kv_events_topic: what subscribers filter by; empty takes kv@HOST@MODEL.
    kv_events_hashes: names of blocks as their low 64 bits, as vLLM has it, or whole.
    """

    kv_events_endpoint: str = ""
    kv_events_replay_endpoint: str = ""
    kv_events_topic: str = ""
    kv_events_hashes: HashForm = "int"

    def __post_init__(self) -> None:
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
            value = getattr(self, name)
            port = value.rpartition(":")[2]
            if value and not (value.startswith("tcp://") and port.isdigit() and int(port) < 65536):
                raise ValueError(f"{name}={value!r}: expected tcp://HOST:PORT")
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise ValueError(
                f"kv_events_replay_endpoint={self.kv_events_replay_endpoint!r}: expected "
                "kv_events_endpoint too"
            )
        if self.kv_events_hashes not in get_args(HashForm):
            raise ValueError(f"kv_events_hashes={self.kv_events_hashes!r}: expected int or bytes")
