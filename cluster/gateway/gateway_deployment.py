"""The Serve deployment that speaks HTTP: binds routes, tokenizer, router and streams together."""

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from cluster.config import ClusterConfig
from cluster.dispatch.failover_dispatcher import FailoverDispatcher
from cluster.gateway.gateway_dispatch import GatewayAddress, GatewayDispatch
from cluster.gateway.http_app import GatewayServices, build_http_app
from cluster.live.live_feed import LiveFeed
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.gateway_reporter import GatewayReporter
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from cluster.tracing.call_tracer import open_tracer
from cluster.worker_logging import log_to_stderr
from replicas.models.prepared_model import PreparedModel

log = logging.getLogger(__name__)

_DISTRIBUTION = "pagoda-serve"


class Gateway:
    """One copy of the HTTP side. It is ready when it has met the first replica.

    args: a ClusterConfig as plain values; its model is a prepared folder. pools: the handle of
    each deployment of replicas, by its role. sleepy: roles of pools that may be empty.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        args: Mapping[str, object],
        pools: Mapping[str, DeploymentHandle[Any]],
        sleepy: Sequence[str] = (),
    ) -> None:
        log_to_stderr()
        config = ClusterConfig.from_args(args)
        model = PreparedModel.load(config.engine.model)
        gateway_id = uuid.uuid4().hex
        served_name = config.gateway.served_model_name or model.name
        self._tracer = open_tracer(config.tracing, model_name=served_name, gateway_id=gateway_id)
        metrics = GatewayMetrics(
            gateway_id=gateway_id, model_name=served_name, on_call_end=self._tracer
        )
        self._live = LiveFeed(
            lambda: self._dispatch.directory.links, clock=time.monotonic, wall_clock=time.time
        )
        self._dispatch = dispatch = GatewayDispatch(
            config,
            GatewayAddress(gateway_id, model.fingerprint, pools, sleepy),
            figures=metrics.figures,
            tell=self._live.events.tell,
        )
        self._reporter = GatewayReporter(
            metrics,
            router=dispatch.router,
            directory=dispatch.directory,
            failovers=dispatch.failover.counts,
            pools=dispatch.sources,
        )
        self._reporter.start()
        await dispatch.start()
        # Nobody has said yet how long a prompt may be, so a pool that sleeps is woken for that.
        for name in dispatch.waker.decoders if not dispatch.directory.links else ():
            dispatch.waker.wake(name)
        sizes = await dispatch.directory.first_announcement()
        if dispatch.waker.decoders:
            # Who is held for a first replica waits longer than who is kept waiting by an engine;
            # the dispatchers have bounds of their own for both.
            held_s = max(config.gateway.admission_timeout_s, config.gateway.wake_timeout_s)
            config = replace(config, gateway=replace(config.gateway, admission_timeout_s=held_s))
        services = await asyncio.to_thread(_services, config, model, dispatch.failover, sizes)
        self._services = replace(services, live=self._live, metrics=metrics)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return build_http_app(self._services)

    async def __del__(self) -> None:
        """Called by Serve when the gateway is to end."""
        # The constructor may have failed before there was anything to close.
        for part in ("_live", "_reporter", "_dispatch"):
            if hasattr(self, part):
                await getattr(self, part).close()
        if hasattr(self, "_services"):
            self._services.tokenizer.close()
        tracer = getattr(self, "_tracer", None)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


def _services(
    config: ClusterConfig,
    model: PreparedModel,
    dispatcher: FailoverDispatcher,
    sizes: ReplicaAnnouncement,
) -> GatewayServices:
    tokenizer = TextTokenizer.load(model)
    return GatewayServices(
        model=model,
        config=config.gateway,
        tokenizer=tokenizer,
        template=ChatTemplate.load(model),
        dispatcher=dispatcher,
        max_model_len=sizes.max_model_len,
        block_size=sizes.block_size,
        num_blocks=sizes.num_blocks,
        version=version(_DISTRIBUTION),
    )
