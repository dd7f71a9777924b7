"""The ways to choose a replica, by the name that a setting gives them."""

from router.config import PolicyName
from router.policies.least_loaded import LeastLoaded
from router.policies.round_robin import RoundRobin
from router.routing_policy import RoutingPolicy


def policy_named(name: PolicyName) -> RoutingPolicy:
    """A fresh policy of that name."""
    return RoundRobin() if name == "round_robin" else LeastLoaded()
