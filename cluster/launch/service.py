"""Brings the whole service up on one machine, waits, and takes it down in the opposite order."""

import contextlib
import dataclasses
import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.config import ClusterConfig
from cluster.config_loading import cache_folder
from cluster.launch.embedded_store import EmbeddedStore
from cluster.launch.endpoint import Endpoint, wait_until
from cluster.launch.free_port import free_port
from cluster.launch.prepare_apart import ModelNotReady, prepare_apart
from cluster.launch.run_folder import make_ray_token, make_run_folder
from cluster.launch.start_phases import ServiceLost, StartFailed, StartPhases
from cluster.launch.stop_wish import StopRequested, raise_on_stop_signals
from cluster.launch.store_address import leave_store_url
from cluster.ray_settings import haproxy_environment, ray_environment
from kvstore.errors import StoreUnavailable
from kvstore.redis_block_store import tls_files
from kvstore.redis_store import server_info, without_secrets
from replicas.config import EngineConfig, SchedulerConfig
from replicas.team_cores import num_allowed_cores

log = logging.getLogger(__name__)

_WATCH_S = 1.0
_OPEN_FILES = 65536


def serve_until_stopped(config: ClusterConfig, environ: Mapping[str, str]) -> int:
    """`pagoda serve` without its supervisor; returns the exit code.

    SIGTERM or SIGINT ends it in order, at any moment of the start too.
    """
    raise_on_stop_signals()
    _raise_open_files_limit()
    folder = make_run_folder()
    expected = (ModelNotReady, StoreUnavailable, OSError)
    phases = StartPhases(expected=expected)
    try:
        with contextlib.ExitStack() as ends:
            _start_and_watch(config, environ, folder, phases, ends)
    except (StopRequested, SystemExit):
        # While Ray starts, its own handler is in place, which exits.
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    except (StartFailed, ServiceLost) as error:
        print(f"pagoda: error: {error}", file=sys.stderr)
        _keep_or_remove(folder)
        return 1
    return 0


def _keep_or_remove(folder: Path) -> None:
    """Ray's logs may say more about a failure; without any there is nothing to keep."""
    if any(folder.glob("session_*")):
        print(f"pagoda: Ray's logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _start_and_watch(
    config: ClusterConfig,
    environ: Mapping[str, str],
    folder: Path,
    phases: StartPhases,
    ends: contextlib.ExitStack,
) -> None:
    with phases.phase("prepare model"):
        model = prepare_apart(config.engine.model, cache_dir=cache_folder(config, environ))
        scheduler = _with_prepared_draft(config, environ)
    engine = dataclasses.replace(engine_of_machine(config), model=model.folder, scheduler=scheduler)
    with phases.phase("store"):
        store = dataclasses.replace(config.store, redis_url=_store_url(config, folder, ends))
    config = dataclasses.replace(config, engine=engine, store=store)
    _prepare_ray_environment(config, folder)
    # Ray and Serve read their settings when they are imported, so not before this line.
    from cluster.launch.ray_service import RayService

    service = RayService(config, folder=folder, phases=phases, ends=ends)
    service.start()
    endpoint = Endpoint.of(config.gateway, model_name=model.name)
    with phases.phase("engine ready"):
        service.wait_until_running()
        if not wait_until(endpoint.is_healthy, timeout_s=config.replica.startup_timeout_s):
            raise StartFailed(f"{endpoint.url}/health did not answer 200 in time")
    with phases.phase("first warm-up"):
        endpoint.warm_up(timeout_s=config.replica.startup_timeout_s)
    _announce(endpoint, phases)
    while True:
        time.sleep(_WATCH_S)
        service.check()


def _with_prepared_draft(config: ClusterConfig, environ: Mapping[str, str]) -> SchedulerConfig:
    """The scheduler's settings, with the folder of the small model that guesses, if one does."""
    scheduler = config.engine.scheduler
    spec = scheduler.speculation.speculative_model
    if not spec:
        return scheduler
    draft = prepare_apart(spec, cache_dir=cache_folder(config, environ))
    speculation = dataclasses.replace(scheduler.speculation, speculative_model=draft.folder)
    return dataclasses.replace(scheduler, speculation=speculation)


def engine_of_machine(config: ClusterConfig, *, num_cores: int | None = None) -> EngineConfig:
    """The engine's settings with its share of this machine, if all of them run here.

    num_cores: of the machine; None takes those that this process may use.
    """
    num_engines = sum(pool.most_replicas for pool in config.pools())
    engine = config.engine
    if config.ray.ray_address or num_engines == 1:
        return engine
    num_threads = max(1, (num_cores or num_allowed_cores()) // num_engines)
    return dataclasses.replace(
        engine,
        engines_per_node=num_engines,
        num_threads=engine.num_threads or num_threads,
    )


def _raise_open_files_limit() -> None:
    """Every client is a socket in HAProxy and one in a gateway; 1,024 files are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _store_url(config: ClusterConfig, folder: Path, ends: contextlib.ExitStack) -> str:
    url = config.store.redis_url
    if url:
        info = server_info(url, timeout_s=config.store.store_timeout_s, tls=tls_files(config.store))
    else:
        store = EmbeddedStore(memory_bytes=config.store.store_memory_bytes, folder=folder)
        ends.enter_context(store)
        info = store.start()
        url = store.url
        leave_store_url(folder, url)
        if config.ray.ray_address:
            log.warning("store: replicas on other hosts cannot reach it; set REDIS_URL")
    # The embedded server's way of dropping blocks is our own choice.
    pin_warnings = info.pin_warnings() if config.store.redis_url else ()
    for warning in (*info.warnings(), *pin_warnings):
        log.warning("store: %s", warning)
    log.info("store answers server=%s %s url=%s", info.name, info.version, without_secrets(url))
    return url


def _prepare_ray_environment(config: ClusterConfig, folder: Path) -> None:
    if config.ray.ray_address:
        return
    # The address of somebody else's cluster must not reach the processes of ours.
    os.environ.pop("RAY_ADDRESS", None)
    os.environ.update(ray_environment())
    os.environ.update(make_ray_token(folder))
    os.environ.update(haproxy_environment(folder, free_port=free_port))


def _announce(endpoint: Endpoint, phases: StartPhases) -> None:
    print(
        f"\nPagoda serves {endpoint.model_name} at {endpoint.url} "
        f"(ready after {phases.elapsed_s:.0f} s; {endpoint.url}/docs; Ctrl-C stops it)\n\n"
        f"{endpoint.curl()}\n",
        flush=True,
    )
