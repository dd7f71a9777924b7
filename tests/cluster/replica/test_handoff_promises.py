"""What is promised to requests on their way is told of each gateway until they come, or cannot."""

from cluster.replica.handoff_promises import HandoffPromises
from router.replica_status import GatewayAdmission


class Clock:
    """Stands still until told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def promised(*requests: tuple[str, str]) -> tuple[HandoffPromises, Clock]:
    """Promises of 5 blocks for 30 seconds, given gateway and request ids."""
    clock = Clock()
    promises = HandoffPromises(clock=clock)
    for gateway_id, request_id in requests:
        promises.add(gateway_id, request_id, num_blocks=5, deadline_s=30.0)
    return promises, clock


def test_promises_are_summed_by_gateway_beside_what_was_admitted():
    promises, _ = promised(("g", "r0"), ("g", "r1"), ("h", "r2"))
    told = promises.added_to([GatewayAdmission("g", 700), GatewayAdmission("f", 9)])
    assert set(told) == {
        GatewayAdmission("g", 700, num_promised=2, promised_blocks=10),
        GatewayAdmission("h", 0, num_promised=1, promised_blocks=5),
        GatewayAdmission("f", 9),
    }


def test_a_request_that_came_or_will_not_is_no_longer_promised():
    promises, _ = promised(("g", "r0"))
    promises.end("another")
    assert promises.added_to([]) == (GatewayAdmission("g", 0, 1, 5),)
    promises.end("r0")
    promises.end("r0")
    assert promises.added_to([]) == ()


def test_a_request_that_never_comes_is_promised_until_its_deadline():
    promises, clock = promised(("g", "r0"))
    clock.now += 29.0
    assert promises.added_to([]) != ()
    clock.now += 1.0
    assert promises.added_to([]) == ()


def test_a_request_that_is_announced_twice_has_one_place():
    promises, _ = promised(("g", "r0"), ("g", "r0"))
    assert promises.added_to([]) == (GatewayAdmission("g", 0, 1, 5),)


def test_the_promises_of_a_gateway_end_with_it():
    promises, _ = promised(("g", "r0"), ("h", "r1"))
    promises.forget_gateway("g")
    assert promises.added_to([]) == (GatewayAdmission("h", 0, 1, 5),)
