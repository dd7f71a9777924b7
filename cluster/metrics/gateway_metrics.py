"""A gateway's own figures beside everybody else's: observed here, reported, and scraped here.

Its own series are shown as they stood in its last report, not as they are now: the other gateways
show that same report a moment later, so that scrapes which a load balancer spreads over the
gateways do not see a counter go back (a tenth of a second apart is enough).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from cluster.metrics.call_meter import CallMeter, CallObservers, CallOrigin
from cluster.metrics.cluster_figures import ClusterFigures, exposition
from cluster.metrics.figures import Figures, LabelValues
from cluster.metrics.metric_report import MetricReport
from replicas.request import EngineRequest


class GatewayMetrics:
    """The figures of one gateway process, and what it has heard of the other processes'.

    gateway_id, model_name: the labels of its series. clock: monotonic seconds. on_call_end: told
    of every generation call when it is over.
    """

    def __init__(
        self,
        *,
        gateway_id: str = "gateway",
        model_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        on_call_end: Callable[[CallMeter], None] | None = None,
    ) -> None:
        self.clock = clock
        self.figures = Figures("gateway")
        self._identity = (gateway_id, model_name)
        self._cluster = ClusterFigures()
        self._observers = CallObservers(self.figures, clock)
        self._on_call_end = on_call_end or _ignore_call
        self._number = 0

    def meter(self, requests: Sequence[EngineRequest], origin: CallOrigin) -> CallMeter:
        """What times one call, which reached this gateway at origin.arrived_at by `clock`."""
        return CallMeter(self._observers, requests, origin=origin, on_end=self._on_call_end)

    def count_response(self, status: int) -> None:
        """An HTTP response began."""
        self.figures.counter("pagoda:http_responses", str(status)).add()

    def set_replicas(
        self, states: Mapping[LabelValues, float], stuck_s: Mapping[LabelValues, float]
    ) -> None:
        """How this gateway sees the replicas; those that are gone are no longer shown."""
        self.figures.set_all("pagoda:replica_state", states)
        self.figures.set_all("pagoda:replica_stuck_seconds", stuck_s)

    def publish(self) -> MetricReport:
        """A new report of this gateway's own figures, which scrapes show from now on."""
        self.figures.set("pagoda:open_calls", self._observers.num_open)
        self._number += 1
        report = MetricReport("gateway", self._identity, self._number, self.figures.series())
        self.take(report)
        return report

    def take(self, report: MetricReport) -> None:
        """Another process's figures arrived."""
        self._cluster.take(report, self.clock())

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of /metrics: the whole cluster, as far as it is known here."""
        if not self._number:
            self.publish()
        reports = self._cluster.reports(self.clock())
        # Hundreds of lines a process; the loop has tokens to carry meanwhile.
        return await asyncio.to_thread(exposition, reports, accept)


def _ignore_call(meter: CallMeter) -> None:
    """Nobody traces calls."""
