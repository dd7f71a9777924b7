"""The host tier's bookkeeping: what is found, what stays, and what goes first."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicas.memory.host_tier import HostBlock, HostTier


def block(name: bytes, parent: bytes = b"root") -> HostBlock:
    return HostBlock(name, parent, (1, 2))


def fill(tier: HostTier, *names: bytes, step: int = 1) -> list[int]:
    """A chain of blocks, first to last."""
    slots = []
    for name, parent in zip(names, [b"root", *names], strict=False):
        slot = tier.take(block(name, parent), step=step)
        assert slot is not None
        slots.append(slot)
    return slots


def test_a_block_is_found_by_its_name_and_its_tokens():
    tier = HostTier(2)
    (slot,) = fill(tier, b"a")
    assert tier.find(b"a", b"root", [1, 2]) == slot
    assert tier.find(b"a", b"root", [1, 3]) is None, (
        "other tokens under the same name are not a hit"
    )
    assert tier.find(b"a", b"other", [1, 2]) is None, "nor is one after other tokens"
    assert tier.find(b"b", b"root", [1, 2]) is None


def test_leaves_go_before_roots_although_they_came_later():
    tier = HostTier(3)
    fill(tier, b"a", b"b", b"c")
    fill(tier, b"x")
    assert b"c" not in tier
    fill(tier, b"y")
    assert b"x" not in tier or b"b" not in tier
    assert b"a" in tier


def test_the_least_recently_used_leaf_goes_first():
    tier = HostTier(2)
    (first,) = fill(tier, b"a")
    fill(tier, b"b")
    tier.touch([first])
    fill(tier, b"c")
    assert b"a" in tier
    assert b"b" not in tier


def test_a_pinned_block_stays_and_a_full_tier_says_no():
    tier = HostTier(1)
    (slot,) = fill(tier, b"a")
    tier.pin(slot)
    assert tier.take(block(b"b"), step=2) is None
    assert tier.num_available == 0
    tier.unpin(slot)
    assert tier.take(block(b"b"), step=2) == slot


def test_a_fetched_block_is_found_only_once_it_is_there():
    tier = HostTier(1)
    slot = tier.reserve(block(b"a"))
    assert slot is not None
    assert tier.find(b"a", b"root", [1, 2]) is None
    tier.fill(slot)
    assert tier.find(b"a", b"root", [1, 2]) == slot
    assert tier.num_pinned == 0


def test_a_fetch_gets_no_slot_that_a_step_still_uses():
    tier = HostTier(1)
    (slot,) = fill(tier, b"a", step=7)
    tier.drop(slot)
    assert tier.reserve(block(b"b")) is None
    tier.note_computed(6)
    assert tier.reserve(block(b"b")) is None
    tier.note_computed(7)
    assert tier.reserve(block(b"b")) == slot


def test_a_cached_block_whose_reader_is_not_computed_is_not_given_to_a_fetch():
    tier = HostTier(1)
    (slot,) = fill(tier, b"a", step=1)
    tier.note_computed(1)
    tier.touch([slot], step=2)
    assert tier.reserve(block(b"b")) is None
    tier.note_computed(2)
    assert tier.reserve(block(b"b")) == slot


def test_dropping_what_nobody_needs_leaves_the_pinned():
    tier = HostTier(2)
    kept, _gone = fill(tier, b"a", b"b")
    tier.pin(kept)
    tier.drop_unpinned()
    assert b"a" in tier
    assert b"b" not in tier
    assert tier.num_free == 1


class AnyTraffic(RuleBasedStateMachine):
    """Whatever is done to a tier, its books are right and no pinned block leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = HostTier(5)
        self.pins: list[int] = []
        self.filling: list[int] = []
        self.step = 0

    def found(self, name: int) -> int | None:
        slots = [self.tier.find(bytes([name]), bytes([parent]), (1, 2)) for parent in range(name)]
        return next((slot for slot in slots if slot is not None), None)

    @rule(name=st.integers(1, 12), parent=st.integers(0, 12))
    def take(self, name: int, parent: int) -> None:
        self.step += 1
        if parent < name and bytes([name]) not in self.tier:
            slot = self.tier.take(block(bytes([name]), bytes([parent])), step=self.step)
            held = {*self.pins, *self.filling}
            assert slot not in held
            assert (slot is None) <= (len(held) > 0), "no room although nothing is pinned"

    @rule(name=st.integers(1, 12), parent=st.integers(0, 12))
    def reserve(self, name: int, parent: int) -> None:
        if parent < name and bytes([name]) not in self.tier:
            slot = self.tier.reserve(block(bytes([name]), bytes([parent])))
            if slot is not None:
                assert self.tier.is_quiet(slot)
                self.filling.append(slot)

    @precondition(lambda self: self.filling)
    @rule(is_whole=st.booleans())
    def end_fetch(self, is_whole: bool) -> None:
        slot = self.filling.pop()
        if is_whole:
            self.tier.fill(slot)
        else:
            self.tier.drop(slot)

    @rule(name=st.integers(1, 12))
    def pin(self, name: int) -> None:
        slot = self.found(name)
        if slot is not None:
            self.tier.pin(slot)
            self.pins.append(slot)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.tier.unpin(self.pins.pop(0))

    @rule(name=st.integers(1, 12))
    def touch(self, name: int) -> None:
        slot = self.found(name)
        if slot is not None:
            self.tier.touch([slot], step=self.step)

    @rule()
    def compute(self) -> None:
        self.tier.note_computed(self.step)

    @invariant()
    def books_are_right(self) -> None:
        self.tier.check([*self.pins, *self.filling])
        assert self.tier.num_free + self.tier.num_held == 5


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, derandomize=True
)
