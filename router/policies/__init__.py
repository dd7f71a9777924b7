"""The ways to choose a replica, by the name that a setting gives them."""

import random
from collections.abc import Callable

from router.config import RouterConfig
from router.policies.cost import Cost
from router.policies.least_loaded import LeastLoaded
from router.policies.power_of_two import PowerOfTwo
from router.policies.prefix_affinity import PrefixAffinity
from router.policies.random_choice import RandomChoice
from router.policies.round_robin import RoundRobin
from router.policies.session import Session
from router.routing_policy import RoutingPolicy


def policy_of(config: RouterConfig, random_source: random.Random) -> RoutingPolicy:
    """A fresh policy as the settings want it; chance comes from `random_source` alone."""
    makers: dict[str, Callable[[], RoutingPolicy]] = {
        "round_robin": RoundRobin,
        "random": lambda: RandomChoice(random_source),
        "least_loaded": lambda: LeastLoaded(random_source),
        "power_of_two": lambda: PowerOfTwo(random_source),
        "prefix_affinity": lambda: PrefixAffinity(
            random_source, load_weight=config.prefix_load_weight
        ),
        "session": lambda: Session(random_source, load_slack=config.session_load_slack),
        "cost": lambda: Cost(random_source),
    }
    return makers[config.policy]()
