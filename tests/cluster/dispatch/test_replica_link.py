"""One replica's stream at its gateway: what a break may have swallowed is said again."""

import time

from cluster.dispatch.replica_link import (
    GatewayIdentity,
    LinkEvents,
    ReplicaLink,
    StreamBreaks,
)
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.streams.stream_codec import PROTOCOL_VERSION
from cluster.streams.token_feed import StreamFeed
from router.config import RouterConfig
from tests.cluster.replica_harness import SECRET, a_request, until
from tests.cluster.stream_harness import Wire, a_side


def ignore(*_news: object) -> None:
    """Nobody listens."""


def a_link(port: int, breaks: StreamBreaks) -> ReplicaLink:
    announcement = ReplicaAnnouncement(
        address=f"127.0.0.1:{port}",
        role="mixed",
        block_size=16,
        fingerprint="",
        protocol_version=PROTOCOL_VERSION,
        max_model_len=512,
        num_blocks=8,
    )
    return ReplicaLink(
        "a",
        announcement,
        identity=GatewayIdentity("g", SECRET),
        config=RouterConfig(resume_timeout_s=20.0),
        events=LinkEvents(ignore, ignore, ignore, ignore, ignore, breaks),
        clock=time.monotonic,
    )


async def test_the_end_of_a_choice_is_asked_for_again_after_a_break():
    breaks = StreamBreaks()
    async with a_side(gateway_grace_s=20.0) as side:
        between = Wire(side.port)
        async with between.open() as port:
            link = a_link(port, breaks)
            request = a_request("r", n=2, max_tokens=100)
            feed = StreamFeed(
                request,
                on_finish_choice=lambda choice: link.finish_choice("r", 0, choice),
                on_close=ignore,
            )
            link.add_feed(feed)
            link.start()
            await until(lambda: side.server.has_gateway("g"))
            feed.finish_choice(1)
            await until(lambda: side.finished == [("r", 0, 1)])
            between.cut()
            await until(lambda: breaks.num_resumed == 1)
            await until(lambda: side.finished == [("r", 0, 1)] * 2)
            await link.close()
