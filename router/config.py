"""Settings of everything that is decided across replicas; a bad value names itself."""

from dataclasses import dataclass
from typing import Literal, get_args

PolicyName = Literal[
    "least_loaded",
    "round_robin",
    "random",
    "power_of_two",
    "prefix_affinity",
    "session",
    "cost",
]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a gateway chooses replicas and when it gives one up.

    policy: which replica takes a request.
    prefix_load_weight: how much a replica's load counts against its prefix hits, with
        prefix_affinity; 0 looks at hits alone.
    session_load_slack: how far above the mean load a session's own replica may be, as a share of
        it, with session.
    max_index_blocks: most block names that a gateway remembers of all prefix caches together, at
        about 125 bytes each.
    ttft_slo_s, tpot_slo_s: latency beyond which an answer is worthless; with policy cost a
        request is refused when no replica is predicted to keep it. 0 is none; the headers
        x-slo-ttft-ms and x-slo-tpot-ms go before it.
    max_tries: most replicas that one request is offered to before the client gets an error.
    accept_timeout_s: longest wait for a chosen replica to admit a request while another could
        take it; one that is alone is given up when it makes no step for stuck_after_s.
    heartbeat_interval_s: how often every replica says that it lives.
    suspect_after_missed: heartbeats in a row whose absence makes a replica suspect: it is chosen
        only when no other can be.
    stuck_after_s: work without a step for this long is reported as a fault.
    resume_timeout_s: how long a broken token stream may take to come back before its requests
        go on elsewhere.
    hung_after_s: a replica that nothing is heard of for this long loses its requests to others.
    migrate_after_s: how long a replica that left the deployment may finish what it has before its
        requests go on elsewhere.
    max_attempts: most attempts of one request whose replicas are lost under it.
    retry_ratio: attempts beyond the first that all requests together may make, as a share of them.
    retry_burst: most such attempts at once: enough for all requests of one replica.
    failover_search_s: longest pause of a stream while no replica can go on with it.
    first_search_s: longest wait of a new request while no replica can take it and one is starting.
    failover_deadline_s: a request this old is not attempted again.
    """

    policy: PolicyName = "least_loaded"
    prefix_load_weight: float = 1.0
    session_load_slack: float = 0.25
    max_index_blocks: int = 2_000_000
    ttft_slo_s: float = 0.0
    tpot_slo_s: float = 0.0
    max_tries: int = 3
    accept_timeout_s: float = 10.0
    heartbeat_interval_s: float = 0.1
    suspect_after_missed: int = 3
    stuck_after_s: float = 30.0
    resume_timeout_s: float = 0.5
    hung_after_s: float = 5.0
    migrate_after_s: float = 2.0
    max_attempts: int = 4
    retry_ratio: float = 0.2
    retry_burst: int = 512
    failover_search_s: float = 60.0
    first_search_s: float = 10.0
    failover_deadline_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.policy not in get_args(PolicyName):
            raise ValueError(
                f"policy={self.policy!r}: expected {' or '.join(get_args(PolicyName))}"
            )
        for name in (
            "prefix_load_weight",
            "session_load_slack",
            "ttft_slo_s",
            "tpot_slo_s",
            "migrate_after_s",
            "retry_ratio",
            "failover_search_s",
            "first_search_s",
        ):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        for name in (
            "max_index_blocks",
            "max_tries",
            "max_attempts",
            "retry_burst",
            "suspect_after_missed",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        for name in (
            "accept_timeout_s",
            "heartbeat_interval_s",
            "stuck_after_s",
            "resume_timeout_s",
            "hung_after_s",
            "failover_deadline_s",
        ):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected more than 0 seconds")
