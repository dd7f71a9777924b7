"""Whether a prompt leaves the decode side, for which reason, and that the cheaper way is taken."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.disaggregation import Decision, DisaggregationLimits, Side, Transfer, decide
from router.pace import Pace

PACE = Pace(decode_base_s=0.02, decode_row_s=0.001, prefill_token_s=0.001)
LIMITS = DisaggregationLimits(min_missing_tokens=64, interference_weight=0.2)
LINK = Transfer(token_s=0.0001, chunk_tokens=512, fixed_s=0.05)
IDLE = Side(PACE)
BUSY = Side(PACE, num_decoding=10)


def decision(prompt_tokens: int = 1000, **changes: object) -> Decision:
    sides = {"decode": BUSY, "prefill": IDLE, "transfer": LINK, "limits": LIMITS, **changes}
    return decide(prompt_tokens, **sides)


def test_a_long_prompt_leaves_a_busy_decode_replica():
    made = decision()
    assert (made.is_remote, made.reason) == (True, "remote_cheaper")
    assert made.local_s == pytest.approx(1.0 + 0.2 * 1.0 * 10)
    assert made.remote_s == pytest.approx(1.0 + 0.0512 + 0.05)


def test_an_idle_decode_replica_keeps_its_prompt():
    assert decision(decode=IDLE).reason == "local_cheaper"


@pytest.mark.parametrize(
    ("prompt_tokens", "hit_tokens", "reason"),
    [(40, 0, "short_prompt"), (1000, 950, "mostly_cached")],
)
def test_what_leaves_little_to_compute_stays(prompt_tokens: int, hit_tokens: int, reason: str):
    made = decision(prompt_tokens, decode=replace(BUSY, hit_tokens=hit_tokens))
    assert made == Decision(is_remote=False, reason=reason)


def test_a_prefill_pool_with_a_long_line_is_passed_over():
    assert decision(prefill=Side(PACE, queued_prefill_tokens=5000)).reason == "local_cheaper"


def test_a_slow_link_that_the_prefill_cannot_hide_keeps_the_prompt():
    assert decision(transfer=replace(LINK, token_s=0.01)).reason == "local_cheaper"


def test_a_link_as_quick_as_the_prefill_exposes_only_the_last_chunk():
    made = decision(10_000, transfer=replace(LINK, token_s=0.001))
    assert made.remote_s == pytest.approx(10.0 + 0.512 + 0.05)


def test_a_prefix_that_the_prefill_side_holds_draws_the_prompt_there():
    short = decision(300, decode=Side(PACE, num_decoding=1))
    held = decision(300, decode=Side(PACE, num_decoding=1), prefill=Side(PACE, hit_tokens=290))
    assert (short.is_remote, held.is_remote) == (False, True)


def test_a_missing_side_decides_before_anything_else():
    always = replace(LIMITS, mode="always")
    assert decision(prefill=None, limits=always).reason == "no_prefill_replica"
    assert decision(decode=None).reason == "no_decode_replica"


@pytest.mark.parametrize(("mode", "is_remote"), [("always", True), ("never", False)])
def test_a_forced_mode_is_obeyed(mode: str, is_remote: bool):
    assert decision(40, limits=replace(LIMITS, mode=mode)) == Decision(is_remote, "forced")


def test_without_a_measure_a_long_prompt_goes_and_is_counted_so():
    assert decision(prefill=Side(Pace())).reason == "unmeasured"


def test_a_prefill_pool_that_was_slow_once_is_tried_again_when_nobody_has_used_it_for_long():
    slow = Side(replace(PACE, prefill_token_s=0.02))
    assert decision(prefill=slow).reason == "local_cheaper"
    assert decision(prefill=slow, trust=0.03).reason == "remote_cheaper"


def test_an_idle_decode_replica_keeps_its_prompt_however_long_nobody_was_handed_over():
    assert decision(decode=IDLE, trust=0.0).reason == "local_cheaper"


@given(
    st.integers(64, 5000),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.floats(1e-6, 0.01),
)
def test_the_way_that_is_taken_is_never_the_dearer_one(
    prompt_tokens: int, queued: int, num_decoding: int, token_s: float
):
    made = decision(
        prompt_tokens,
        decode=Side(PACE, num_decoding=num_decoding),
        prefill=Side(PACE, queued_prefill_tokens=queued),
        transfer=replace(LINK, token_s=token_s),
    )
    assert made.local_s is not None
    assert made.remote_s is not None
    assert made.is_remote == (made.remote_s < made.local_s)


@pytest.mark.parametrize("bad", [{"mode": "sometimes"}, {"interference_weight": -1.0}])
def test_a_bad_limit_names_itself(bad: dict[str, object]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        DisaggregationLimits(**bad)
