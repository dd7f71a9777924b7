"""The whole service on a real Ray and Serve, with the scripted engine behind it."""

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray import serve
from ray._raylet import AuthenticationTokenLoader

from cluster.app import compose
from cluster.config import ClusterConfig, GatewayConfig, ReplicaConfig
from cluster.ray_settings import haproxy_environment, ray_environment
from cluster.replica.scripted_engine import EngineScript, StartScriptedEngine
from replicas.config import EngineConfig
from tests.cluster.tiny_model import NUM_PRINTABLE, prepare_tiny_model

APP = "pagoda"
SCRIPT = EngineScript(step_s=0.005, vocab_size=NUM_PRINTABLE - 1, fingerprint="f00d")
REPLICA = ReplicaConfig(num_cpus=0.1, gateway_grace_s=1.0, health_check_period_s=1.0)


@contextmanager
def running_service(
    free_port: Callable[[], int],
    *,
    script: EngineScript = SCRIPT,
    environment: dict[str, str] | None = None,
    **config: object,
) -> Iterator[ClusterConfig]:
    """One gateway on a free port, and the replicas that `config` asks for."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pg-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        set_environment(patch, folder, free_port=free_port)
        for variable, value in (environment or {}).items():
            patch.setenv(variable, value)
        model = prepare_tiny_model(folder / "model", fingerprint=script.fingerprint)
        defaults = ClusterConfig(
            gateway=GatewayConfig(port=port),
            replica=REPLICA,
            engine=EngineConfig(model=model.folder),
        )
        made = replace(defaults, **config)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 1024 * 1024,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder / "ray"),
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(compose(made, start_engine=StartScriptedEngine(script)), name=APP)
            yield made
        finally:
            serve.shutdown()
            ray.shutdown()


def set_environment(
    patch: pytest.MonkeyPatch, folder: Path, *, free_port: Callable[[], int]
) -> None:
    """Tokens and ports of its own for a Ray in `folder`."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    haproxy = folder / "haproxy"
    haproxy.mkdir(mode=0o700)
    environment = {
        **ray_environment(),
        **haproxy_environment(haproxy, free_port=free_port),
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    for variable, value in environment.items():
        patch.setenv(variable, value)
    AuthenticationTokenLoader.instance().reset_cache()
