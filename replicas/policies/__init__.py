"""Orders in which waiting requests are considered: one class, one method each."""

from replicas.policies.fcfs import FirstComeFirstServed
from replicas.policies.priority import PriorityOrder
from replicas.policies.waiting_order import WaitingOrder

__all__ = ["FirstComeFirstServed", "PriorityOrder", "WaitingOrder", "waiting_order"]


def waiting_order(scheduling_policy: str) -> WaitingOrder:
    """The order that a scheduling_policy setting names; ValueError for an unknown one."""
    orders: dict[str, type[WaitingOrder]] = {
        "fcfs": FirstComeFirstServed,
        "priority": PriorityOrder,
    }
    if scheduling_policy not in orders:
        raise ValueError(f"scheduling_policy={scheduling_policy!r}: expected one of {[*orders]}")
    return orders[scheduling_policy]()
