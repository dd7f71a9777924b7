"""What can go wrong between a gateway and the replicas, each caught where it is answered."""

from replicas.request import Refusal


class DispatchError(Exception):
    """A request could not be carried out; the message is fit for a client."""


class RequestRefused(DispatchError):
    """The chosen engine turned the request away before it computed anything."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class NoReplica(DispatchError):
    """No replica can take requests now; `retry_after_s` says when to come back.

    may_wait: whether the same request may be tried again as soon as there is one. was_asked:
    whether a replica was asked before, and did not take it.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        may_wait: bool = False,
        was_asked: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.may_wait = may_wait
        self.was_asked = was_asked


class ReplicaLost(DispatchError):
    """The replica or its engine ended while it worked on the request."""
