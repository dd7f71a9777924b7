"""Every Ray setting this house relies on, with its reason; to be set before Ray starts.

Ray reads them once in each process, from the environment that the first process had, so they have
to be there before `ray start` or `ray.init` (in Kubernetes: in the pod's env).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.launch import haproxy_process


@dataclass(frozen=True, slots=True)
class RaySetting:
    """One environment variable, and why it has that value."""

    name: str
    value: str
    reason: str


# Longest answer that a change of the gateway set must not cut, in seconds.
LONGEST_STREAM_S = 3600

RAY_SETTINGS = (
    RaySetting(
        "RAY_AUTH_MODE",
        "token",
        "Ray and Serve unpickle what the network sends, so only holders of the token may connect; "
        "explicit, since Ray 2.60 turns it on by itself when a token file happens to exist.",
    ),
    RaySetting(
        "RAY_SERVE_ENABLE_HA_PROXY",
        "1",
        "HTTP goes through HAProxy straight to the gateways, not through a Python proxy: 15,700 "
        "streamed tokens/s against 4,200 to 6,300 on two cores.",
    ),
    RaySetting(
        "RAY_SERVE_THROUGHPUT_OPTIMIZED",
        "1",
        "One event loop for user code, router and Serve's calls, and gRPC between deployments; "
        "the other half of the figure above. In return nothing may block that loop.",
    ),
    RaySetting(
        "SERVE_SOCKET_REUSE_PORT_ENABLED",
        "0",
        "Otherwise Serve's own proxy, to which HAProxy turns when it reaches no gateway, shares "
        "its port with that of any other service here, and the kernel deals requests to both.",
    ),
    RaySetting(
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
        "1",
        "Otherwise a gateway stays 30 s when it is told to end, also at Ctrl-C.",
    ),
    RaySetting(
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S",
        str(LONGEST_STREAM_S),
        "Each change of the gateway set starts a new HAProxy; the old one is cut after this time, "
        "with every stream that still runs through it (default 120).",
    ),
    RaySetting(
        "RAY_SERVE_PORT_QUARANTINE_S",
        "150",
        "How long a gateway's port is not used again. It follows from the setting above unless "
        "set, and an hour of it could use the port range up while gateways restart.",
    ),
    RaySetting(
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S",
        str(LONGEST_STREAM_S),
        "A client that waits silently for its first token is not cut before the answer is.",
    ),
    RaySetting(
        "RAY_SERVE_LOG_TO_STDERR",
        "0",
        "Serve's lines go to its log files; the terminal belongs to our own events.",
    ),
    RaySetting(
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S",
        "0.25",
        "Serve's controller looks at everything so often; ten times a second cost 3 % of a core "
        "for as long as nothing changes. A lost replica's requests do not wait for it.",
    ),
    RaySetting(
        "RAY_worker_niceness",
        "0",
        "Ray runs workers, and so the engine, at niceness 15: anything else on the machine that "
        "is busy would take nearly the whole core from them.",
    ),
    RaySetting(
        "RAY_USAGE_STATS_ENABLED", "0", "A serving system does not report home unless asked."
    ),
    RaySetting("RAY_health_check_initial_delay_ms", "1000", "See the next three."),
    RaySetting("RAY_health_check_period_ms", "500", "A lost node is noticed after 1.4 s, not"),
    RaySetting("RAY_health_check_timeout_ms", "1000", "13.8 s (a cut link: 4.4 s, not 63.9 s), so"),
    RaySetting("RAY_health_check_failure_threshold", "3", "its replicas are replaced sooner."),
)


def ray_environment() -> dict[str, str]:
    """The settings as an environment."""
    return {setting.name: setting.value for setting in RAY_SETTINGS}


def haproxy_environment(folder: Path, *, free_port: Callable[[], int]) -> dict[str, str]:
    """HAProxy, its files in a private folder, and the ports around it where they meet no other's.

    By default they lie in /tmp/haproxy-serve, shared by every Ray of the machine, with an admin
    socket that everybody may write to; so the folder must be closed to others (mode 0700). The
    fallback proxy is where HAProxy sends what no gateway takes; with a fixed port a second service
    of the machine could not start its own.
    """
    return {
        haproxy_process.VARIABLE: str(haproxy_process.haproxy_command()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
    }
