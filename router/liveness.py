"""Judges from a replica's own stream whether it lives, since Ray sees a death seconds later.

Three missed heartbeats make a replica suspect, not dead: on a busy machine a live process is often
late, and giving its requests up would cost more than waiting. A closed stream that did not come
back is gone. Heartbeats carry the age of the last step, so a process that answers while its engine
stands still is found too (health is progress, not liveness: DESIGN 6).
"""

from router.replica_status import ReplicaState


class ReplicaLiveness:
    """One replica's state from the events of its stream. Times are seconds of one monotonic clock.

    heartbeat_interval_s: how often the replica promises to be heard.
    suspect_after_missed: heartbeats in a row whose absence makes it suspect.
    stuck_after_s: work without a step for this long is a fault.
    """

    def __init__(
        self, *, heartbeat_interval_s: float, suspect_after_missed: int, stuck_after_s: float
    ) -> None:
        self._silence_limit_s = heartbeat_interval_s * suspect_after_missed
        self._stuck_after_s = stuck_after_s
        self._is_open = False
        self._is_broken = False
        self._in_set = True
        self._left_at = 0.0
        self._is_accepting = False
        self._heard_at = 0.0
        self._last_step_at = 0.0
        self._has_work = False

    def on_open(self, now: float) -> None:
        """The stream is up: either the first time, or again after a break."""
        self._is_open = True
        self._is_broken = False
        self._heard_at = now
        self._last_step_at = now

    def on_step(self, now: float) -> None:
        """An engine step arrived; it is as good as a heartbeat with age 0."""
        self._heard_at = now
        self._last_step_at = now

    def on_heartbeat(
        self, now: float, *, last_step_age_s: float, has_work: bool, is_accepting: bool
    ) -> None:
        """The replica lives; its engine made its last step `last_step_age_s` ago."""
        self._heard_at = now
        self._last_step_at = now - last_step_age_s
        self._has_work = has_work
        self._is_accepting = is_accepting

    def on_break(self) -> None:
        """The stream broke; it may come back within the time that the caller allows."""
        self._is_broken = True

    def on_lost(self) -> None:
        """The stream did not come back in time, or was ended by the replica."""
        self._is_open = False
        self._is_broken = False
        self._is_accepting = False
        self._has_work = False

    def on_left_set(self, now: float) -> None:
        """The replica is no longer in the deployment: it drains until its stream ends."""
        if self._in_set:
            self._left_at = now
        self._in_set = False

    def state(self, now: float) -> ReplicaState:
        """What the events so far make of the replica at `now`."""
        if not self._in_set:
            return ReplicaState.DRAINING if self._is_open else ReplicaState.GONE
        if not self._is_open or not self._is_accepting:
            return ReplicaState.STARTING
        if self._is_broken or now - self._heard_at > self._silence_limit_s:
            return ReplicaState.SUSPECT
        return ReplicaState.ACTIVE

    def stuck_s(self, now: float) -> float:
        """For how long the replica has had work without a step; 0.0 below `stuck_after_s`."""
        if not self._is_open or not self._has_work:
            return 0.0
        age_s = now - self._last_step_at
        return age_s if age_s > self._stuck_after_s else 0.0

    def silence_s(self, now: float) -> float:
        """For how long nothing was heard on an open stream; 0.0 where none is open."""
        return now - self._heard_at if self._is_open else 0.0

    def draining_s(self, now: float) -> float:
        """For how long the replica has been draining; 0.0 when it is in the deployment."""
        return 0.0 if self._in_set else now - self._left_at

    def is_advancing(self, now: float) -> bool:
        """Whether the replica has work and makes progress with it, however slowly."""
        can_be_heard = self.state(now) in (ReplicaState.ACTIVE, ReplicaState.SUSPECT)
        return can_be_heard and self._has_work and self.stuck_s(now) == 0.0
