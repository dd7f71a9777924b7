"""The table of open requests: ends, work that is left, and whose entries are whose."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.replica.open_requests import OpenRequests
from replicas.request import FinishReason, Refusal, RefusalReason, TokenEntry
from tests.cluster.replica_harness import a_request


def an_entry(request_id: str = "r", **fields: object) -> TokenEntry:
    values = {"attempt": 0, "choice": 0, "index": 0, **fields}
    return TokenEntry(request_id, **values)


async def test_work_falls_as_tokens_come_and_is_nothing_at_the_end():
    table = OpenRequests()
    done = table.add(a_request(prompt=(1,) * 10, max_tokens=5), "g")
    assert table.outstanding_tokens == 15
    table.apply([an_entry()])
    assert table.outstanding_tokens == 15
    table.apply([an_entry(token_ids=(1,))])
    assert table.outstanding_tokens == 4
    table.apply([an_entry(index=1, token_ids=(2,), finish_reason=FinishReason.STOP)])
    assert table.outstanding_tokens == 0
    assert done.result().finish_reasons == (FinishReason.STOP,)
    assert done.result().num_output_tokens == 2
    assert len(table) == 0


async def test_a_request_ends_with_its_last_choice():
    table = OpenRequests()
    done = table.add(a_request(n=2), "g")
    table.apply([an_entry(choice=1, finish_reason=FinishReason.LENGTH)])
    assert not done.done()
    table.apply([an_entry(choice=0, finish_reason=FinishReason.STOP_STRING)])
    assert done.result().finish_reasons == (FinishReason.STOP_STRING, FinishReason.LENGTH)


async def test_entries_go_to_the_gateway_that_asked():
    table = OpenRequests()
    table.add(a_request("a"), "one")
    table.add(a_request("b"), "two")
    entries = [an_entry("a", token_ids=(1,)), an_entry("b", token_ids=(2,))]
    assert table.apply(entries) == {"one": [entries[0]], "two": [entries[1]]}


async def test_entries_of_another_attempt_or_of_nobody_are_dropped():
    table = OpenRequests()
    table.add(replace(a_request(), attempt=3), "g")
    assert table.apply([an_entry(attempt=2, token_ids=(1,)), an_entry("x", token_ids=(1,))]) == {}
    assert table.apply([an_entry(attempt=3, token_ids=(1,))]).keys() == {"g"}


async def test_a_refusal_ends_every_choice():
    table = OpenRequests()
    done = table.add(a_request(n=3), "g")
    refusal = Refusal(RefusalReason.QUEUE_FULL, "full")
    table.apply([an_entry(finish_reason=FinishReason.REFUSED, refusal=refusal)])
    assert done.result().finish_reasons == (FinishReason.REFUSED,) * 3
    table.check()


async def test_failing_all_says_so_for_every_choice_that_still_ran():
    table = OpenRequests()
    done = table.add(a_request(n=2), "g")
    table.apply([an_entry(choice=0, finish_reason=FinishReason.STOP)])
    table.apply([an_entry(choice=1, token_ids=(1, 2))])
    failed = table.fail_all()["g"]
    assert [(e.choice, e.index, e.finish_reason) for e in failed] == [(1, 2, FinishReason.ERROR)]
    assert done.result().finish_reasons == (FinishReason.STOP, FinishReason.ERROR)
    assert table.outstanding_tokens == 0


async def test_a_resumed_request_owes_only_what_is_left():
    table = OpenRequests()
    table.add(replace(a_request(prompt=(1,) * 4, max_tokens=10), emitted_token_ids=(7,) * 6), "g")
    assert table.outstanding_tokens == 4 + 6 + 4
    table.apply([an_entry(index=6, token_ids=(1,))])
    assert table.outstanding_tokens == 3


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 1), st.sampled_from(["token", "end", "drop", "add"])
        ),
        max_size=60,
    )
)
async def test_work_always_adds_up(operations: list[tuple[int, int, str]]):
    table = OpenRequests()
    for number, choice, operation in operations:
        key = (f"r{number}", 0)
        if operation == "add" and key not in table:
            table.add(a_request(key[0], n=2, max_tokens=3), "g")
        elif operation == "drop":
            table.drop([key], reason="test")
        elif operation == "token":
            table.apply([an_entry(key[0], choice=choice, token_ids=(1,))])
        elif operation == "end":
            table.apply([an_entry(key[0], choice=choice, finish_reason=FinishReason.STOP)])
        table.check()
        assert table.outstanding_tokens >= 0
