"""Views on the token stream: whole, bounded, and only for those who watch."""

import asyncio

from cluster.live.live_codec import decode_view, encode_view, join_views
from cluster.replica.scripted_engine import EngineScript
from cluster.streams.stream_codec import EngineReport, StepMessage, decode_step, encode_step
from cluster.streams.token_outbox import TokenOutbox
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_view import MAX_SPANS, EngineView, RowKind, Span
from tests.cluster.replica_harness import a_request, cluster, read_all, until

REPORT = EngineReport()


def a_view(number, *, num_spans=1):
    return EngineView(
        at=float(number),
        spans=tuple(
            Span(lane, f"request-{lane % 3}", 1, RowKind.RECOMPUTE, 7, 1.5, 2.5)
            for lane in range(num_spans)
        ),
        num_hidden_rows=2,
        cells=bytes([0, 64, 255, number]),
        blocks_per_cell=3,
        ttfts_s=(0.25,),
        tpots_s=(0.125, 0.5),
    )


def test_a_view_comes_out_as_it_went_in():
    view = a_view(1, num_spans=10)
    message = encode_view(view)
    assert len(message.request_ids) == 3
    assert decode_view(wire.EngineView.FromString(message.SerializeToString())) == view


def test_a_step_carries_a_view_or_none():
    for view in (None, a_view(1)):
        step = StepMessage(1, (), REPORT, (), view)
        assert decode_step(encode_step(step).step) == step


def test_joined_views_hold_what_happened_in_both_and_the_newer_blocks():
    joined = join_views(a_view(1), a_view(2, num_spans=2))
    assert (joined.at, joined.cells[-1], len(joined.spans)) == (2.0, 2, 3)
    assert (len(joined.ttfts_s), len(joined.tpots_s)) == (2, 4)
    assert join_views(None, a_view(1)) == join_views(a_view(1), None) == a_view(1)


def test_views_that_are_not_read_do_not_pile_up():
    joined = a_view(0)
    for number in range(1, 200):
        joined = join_views(joined, a_view(number, num_spans=100))
    assert len(joined.spans) == MAX_SPANS


def test_a_slow_gateway_gets_the_views_of_its_steps_in_one():
    outbox = TokenOutbox()
    for number in (1, 2):
        outbox.add_step((), REPORT, None, a_view(number))
    outbox.add_step((), REPORT, None)
    step = decode_step(wire.ReplicaMessage.FromString(outbox.take()).step)
    assert (step.view.at, len(step.view.spans)) == (2.0, 2)
    outbox.add_step((), REPORT, None)
    assert decode_step(wire.ReplicaMessage.FromString(outbox.take()).step).view is None


async def test_a_gateway_that_does_not_watch_gets_no_view():
    async with cluster() as made:
        await read_all(await made.dispatcher.open(a_request(max_tokens=50)))
        assert made.directory.link("replica0").take_view() is None


async def test_a_gateway_that_watches_sees_its_request():
    async with cluster(script=EngineScript(step_s=0.01)) as made:
        link = made.directory.link("replica0")
        link.watch(10.0)
        feed = await made.dispatcher.open(a_request("mine", max_tokens=50))
        await read_all(feed)
        seen = []

        def is_seen():
            view = link.take_view()
            seen.extend(view.spans if view else ())
            return any(span.request_id == "mine" for span in seen)

        await until(is_seen)


async def test_a_watch_ends_by_itself():
    async with cluster() as made:
        link = made.directory.link("replica0")
        link.watch(0.05)
        await asyncio.sleep(0.2)
        link.take_view()
        await read_all(await made.dispatcher.open(a_request(max_tokens=50)))
        assert link.take_view() is None
