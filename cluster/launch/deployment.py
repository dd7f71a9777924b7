"""Puts the Serve application on a Ray cluster, follows it until it runs, and takes it off."""

import contextlib
import io
import logging
import time
from collections.abc import Callable, Mapping

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus

from cluster.config import ClusterConfig
from cluster.launch.endpoint import wait_until

log = logging.getLogger(__name__)

APP_NAME = "pagoda"
# What an application takes to end that has nothing to do.
_IDLE_STOP_S = 5.0
Builder = Callable[[Mapping[str, object]], serve.Application]


class DeployFailed(Exception):
    """The application does not come up; the message is Serve's own, shortened."""


class Deployment:
    """One application on the cluster that `ray` is connected to.

    is_ours: the cluster ends with us, so Serve is shut down with it; on another's cluster only our
    application is taken off.
    """

    def __init__(self, config: ClusterConfig, *, is_ours: bool) -> None:
        self._config = config
        self._is_ours = is_ours

    def submit(self, build_app: Builder) -> None:
        """Start Serve if need be and hand the application to it; returns at once."""
        gateway = self._config.gateway
        # Serve's own lines would say again, in other words, what ours say.
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options=HTTPOptions(host=gateway.host, port=gateway.port))
        serve.run_many(
            [serve.RunTarget(build_app(self._config.to_args()), name=APP_NAME, route_prefix="/")],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def is_running(self) -> bool:
        """Whether every replica is up; raises DeployFailed if Serve has given up."""
        application = serve.status().applications.get(APP_NAME)
        if application is None:
            return False
        if application.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            messages = [d.message for d in application.deployments.values() if d.message]
            raise DeployFailed(_last_line(messages[0] if messages else application.message))
        return application.status == ApplicationStatus.RUNNING

    def close(self) -> None:
        """Let running requests end within the shutdown timeout, then take the application off.

        Deleting goes before shutting down: a shutdown ends HAProxy first, and every stream with it.
        On another's cluster, Serve goes on draining what has not ended by then; our own Ray is
        about to be killed with it, and would only wait as long once more if Serve were shut down.
        """
        began_at = time.monotonic()
        serve.delete(APP_NAME, _blocking=False)
        timeout_s = self._config.replica.shutdown_timeout_s + _IDLE_STOP_S
        has_ended = wait_until(_is_gone, timeout_s=timeout_s)
        if self._is_ours and has_ended:
            # Ray prints there, in alarm, that the controller did not survive its own shutdown.
            with contextlib.redirect_stdout(io.StringIO()):
                serve.shutdown()  # type: ignore[no-untyped-call]
        log.info("serve stopped seconds=%.1f is_drained=%s", time.monotonic() - began_at, has_ended)


def _is_gone() -> bool:
    return APP_NAME not in serve.status().applications


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
