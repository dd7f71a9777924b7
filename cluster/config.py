"""Settings of the whole service, composed from each package's own.

The docstrings below are also the help texts of `pagoda serve --help` and of the README's table:
a line `name: text` for every field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from cluster import settings
from cluster.kv_events.config import KvEventsConfig
from cluster.pools.pool_config import HandoffConfig, PoolConfig, ScalingConfig, check_bounds
from cluster.pools.pool_layout import Pool, share_of_a_request
from kvstore.config import StoreConfig
from replicas.config import EngineConfig
from router.config import RouterConfig

DEMO_MODEL = "demo"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The HTTP side.

    host: address that the endpoint listens on.
    port: TCP port that the endpoint listens on.
    num_gateways: copies of the gateway; each one validates, tokenises and detokenises.
    api_keys: each of these opens every route but /health, /version and the page's own files, which
        are open; empty means open to all.
    max_body_bytes: a larger request body is answered with 413.
    max_num_choices: largest n or best_of of one request.
    max_logprobs: most likely tokens that may be asked for beside each token.
    max_prompts: most prompts in one call of /v1/completions.
    max_stop_strings: most stop strings of one request.
    body_timeout_s: longest time that a request body may take to arrive (408).
    admission_timeout_s: longest wait for an engine to take a request in (503).
    wake_timeout_s: longest wait for the first replica of an idle model that has none (503).
    queue_timeout_s: longest wait in an engine's line before it is answered with 503; 0 has no end.
    keep_alive_s: a stream without news this long gets a comment line, so that no proxy cuts it.
    max_silence_s: a request without news this long is given up.
    allowed_origins: origins whose pages may call the endpoint (CORS), * for all; empty for none.
    served_model_name: the name that clients use; empty takes the model's own.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    num_gateways: int = 1
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    max_body_bytes: int = 4 * 1024 * 1024
    max_num_choices: int = 128
    max_logprobs: int = 20
    max_prompts: int = 256
    max_stop_strings: int = 16
    body_timeout_s: float = 30.0
    admission_timeout_s: float = 30.0
    wake_timeout_s: float = 300.0
    queue_timeout_s: float = 600.0
    keep_alive_s: float = 10.0
    max_silence_s: float = 900.0
    allowed_origins: tuple[str, ...] = ()
    served_model_name: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port={self.port}: expected 1 to 65535")
        if not all(self.api_keys):
            raise ValueError("api_keys: expected no empty key, which everybody would have")
        for name in ("num_gateways", "max_body_bytes", "max_num_choices", "max_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        for name in ("max_stop_strings", "max_logprobs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        for name in (
            *("body_timeout_s", "admission_timeout_s", "wake_timeout_s"),
            *("keep_alive_s", "max_silence_s"),
        ):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected more than 0 seconds")
        if not self.queue_timeout_s >= 0.0:
            raise ValueError(
                f"queue_timeout_s={self.queue_timeout_s}: expected 0 (no end) or more seconds"
            )


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """How many engines there are, and how they come and go.

    num_replicas: engines that take whole requests, each with a KV cache of its own; 0 is one, or
        none beside a decode pool.
    min_replicas: fewest of these engines while they scale; 0 lets an idle model end.
    max_replicas: most of these engines; more than 0 lets them scale with their load.
    startup_timeout_s: longest wait until a new replica can take requests.
    shutdown_timeout_s: how long running requests may go on once the whole service is told to stop.
    drain_timeout_s: how long a single gateway or replica that has to go may take; its requests end
        there, or go on elsewhere after migrate_after_s.
    num_cpus: CPU slots that Ray places one replica by; they limit nothing.
    num_gpus: GPUs of one replica.
    health_check_period_s: how often Serve asks a gateway and a replica for its health.
    health_check_timeout_s: an answer that takes longer counts as a failure.
    stall_timeout_s: a replica with work and without a step for this long is replaced.
    token_stream_host: address that a replica's token stream listens on; several hosts need 0.0.0.0.
    token_stream_port: TCP port of the token stream; 0 takes any free one.
    block_stream_port: TCP port at which replicas of the pools read each other's blocks, at the same
        address as the token stream; 0 takes any free one.
    gateway_grace_s: how long a gateway may stay away from a replica before its requests end.
    max_stream_message_bytes: largest message of the token stream, in both directions.
    """

    num_replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    startup_timeout_s: float = 600.0
    shutdown_timeout_s: float = 5.0
    drain_timeout_s: float = 600.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    health_check_period_s: float = 5.0
    health_check_timeout_s: float = 30.0
    stall_timeout_s: float = 60.0
    token_stream_host: str = "127.0.0.1"
    token_stream_port: int = 0
    block_stream_port: int = 0
    gateway_grace_s: float = 3.0
    max_stream_message_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in (
            *("num_replicas", "min_replicas", "max_replicas"),
            *("num_cpus", "num_gpus", "gateway_grace_s", "drain_timeout_s"),
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        check_bounds(self.min_replicas, self.max_replicas, self.num_replicas)
        for name in ("health_check_period_s", "health_check_timeout_s", "stall_timeout_s"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected more than 0 seconds")
        for name in ("token_stream_port", "block_stream_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 to 65535")
        if self.max_stream_message_bytes < 4 * 1024 * 1024:
            raise ValueError(
                f"max_stream_message_bytes={self.max_stream_message_bytes}: expected at least 4 MiB"
            )
        if not self.startup_timeout_s > 0.0:
            raise ValueError(
                f"startup_timeout_s={self.startup_timeout_s}: expected more than 0 seconds"
            )
        if not self.shutdown_timeout_s >= 0.0:
            raise ValueError(
                f"shutdown_timeout_s={self.shutdown_timeout_s}: expected 0 seconds or more"
            )


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Mutual TLS between gateways and replicas; without it their gRPC is in clear, for one host.

    peer_ca_file: who must have signed the certificate of every peer; empty means no TLS.
    peer_cert_file: the cluster's own certificate, for peer.pagoda.internal.
    peer_key_file: the key of that certificate.
    """

    peer_ca_file: str = ""
    peer_cert_file: str = ""
    peer_key_file: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        files = (self.peer_ca_file, self.peer_cert_file, self.peer_key_file)
        if any(files) and not all(files):
            raise ValueError(
                "peer_ca_file, peer_cert_file and peer_key_file: expected all three or none"
            )


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster that carries the service.

    ray_address: an existing cluster to deploy to; empty starts a local one that ends with us.
    object_store_memory_bytes: shared memory of the local Ray; tokens and blocks do not use it.
    """

    ray_address: str = ""
    object_store_memory_bytes: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.object_store_memory_bytes < 80 * 1024 * 1024:
            raise ValueError(
                f"object_store_memory_bytes={self.object_store_memory_bytes}: "
                "expected at least 80 MiB, which Ray insists on"
            )


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Traces of calls, by OpenTelemetry; off by default.

    traces_exporter: where traces go; otlp needs the extra pagoda-serve[tracing].
    otlp_traces_endpoint: the collector's URL for traces, OTLP over HTTP.
    traces_sample_ratio: share of calls that are traced; a client's own decision goes before it.
    """

    traces_exporter: Literal["none", "console", "otlp"] = "none"
    otlp_traces_endpoint: str = "http://localhost:4318/v1/traces"
    traces_sample_ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.traces_exporter not in ("none", "console", "otlp"):
            raise ValueError(
                f"traces_exporter={self.traces_exporter!r}: expected none, console or otlp"
            )
        if not 0.0 <= self.traces_sample_ratio <= 1.0:
            raise ValueError(
                f"traces_sample_ratio={self.traces_sample_ratio}: expected a share in [0, 1]"
            )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Everything that `pagoda serve` needs to know.

    cache_dir: folder of prepared models; empty takes $XDG_CACHE_HOME/pagoda or ~/.cache/pagoda.
    """

    gateway: GatewayConfig = GatewayConfig()
    replica: ReplicaConfig = ReplicaConfig()
    peers: PeersConfig = PeersConfig()
    engine: EngineConfig = EngineConfig(model=DEMO_MODEL)
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    handoff: HandoffConfig = HandoffConfig()
    scaling: ScalingConfig = ScalingConfig()
    router: RouterConfig = RouterConfig()
    store: StoreConfig = StoreConfig()
    ray: RayConfig = RayConfig()
    tracing: TracingConfig = TracingConfig()
    kv_events: KvEventsConfig = KvEventsConfig()
    cache_dir: str = ""

    def __post_init__(self) -> None:
        # What a pool sets for itself has to fit the rest of its engine's settings.
        self.pools()

    def pools(self) -> tuple[Pool, ...]:
        """Every pool of replicas there shall be: of whole requests, of prompts, of outputs."""
        replica = self.replica
        share = partial(
            share_of_a_request,
            engine=self.engine,
            num_cpus=replica.num_cpus,
            num_gpus=replica.num_gpus,
        )
        prefill, decode = share("prefill", self.prefill), share("decode", self.decode)
        if decode and not (replica.num_replicas or replica.max_replicas):
            return (*prefill, *decode)
        mixed = Pool(
            role="mixed",
            num_replicas=max(replica.num_replicas, replica.min_replicas, 1),
            min_replicas=replica.min_replicas,
            max_replicas=replica.max_replicas,
            engine=replace(self.engine, role="mixed"),
            num_cpus=replica.num_cpus,
            num_gpus=replica.num_gpus,
        )
        return (mixed, *prefill, *decode)

    def to_args(self) -> dict[str, object]:
        """Plain values for the Serve builder; from_args makes the same config of them."""
        return settings.nest(self)

    @classmethod
    def from_args(cls, args: Mapping[str, object]) -> "ClusterConfig":
        """The config that `to_args`, or a Serve YAML's partial `args`, describes.

        Raises SettingError for a name that is no setting and for a value that cannot be used.
        """
        defaults = cls()
        return settings.build(defaults, settings.flatten(defaults, args, source="args"))
