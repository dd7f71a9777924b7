"""The token stream over real gRPC: secrets, order, slow readers, breaks, goodbyes."""

import asyncio
import time

import grpc
import pytest

from cluster.streams.stream_codec import (
    METHOD,
    SECRET_METADATA_KEY,
    KvEventBatch,
)
from cluster.wire import token_stream_pb2 as wire
from replicas.handoff import HandoffIn
from replicas.request import EngineRequest, KvEvent, SamplingParams
from tests.cluster.replica_harness import SECRET, until
from tests.cluster.stream_harness import REPORT, SNAPSHOT, Ear, Wire, a_client, a_side, heard


async def test_steps_arrive_in_order_with_their_tokens():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear):
        await until(heard(ear, "open"))
        for token in range(200):
            side.say(token)
            await asyncio.sleep(0)
        await until(lambda: len(ear.token_ids()) == 200)
        assert ear.token_ids() == list(range(200))
        numbers = [step.sequence for step in ear.steps]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_each_gateway_gets_its_own_tokens_and_all_get_the_report():
    one, two = Ear(), Ear()
    async with (
        a_side() as side,
        a_client(side.port, one, gateway_id="one"),
        a_client(side.port, two, gateway_id="two"),
    ):
        await until(lambda: side.server.gateways == {"one", "two"})
        side.say(1, 2, gateway="one")
        await until(lambda: bool(one.steps) and bool(two.steps))
        assert one.token_ids() == [1, 2]
        assert two.token_ids() == []


async def test_heartbeats_come_without_steps():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear):
        await until(lambda: len(ear.heartbeats) > 5)
        assert ear.steps == []
        assert ear.heartbeats[0].is_accepting


async def test_a_peer_without_the_secret_gets_nothing():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear, secret="guessed"):
        await asyncio.sleep(0.2)
        assert side.server.gateways == frozenset()
        assert ear.events == []


async def attach_with(port: int, *messages: wire.GatewayMessage, secret: str = SECRET) -> str:
    """Attach by hand; the status with which the replica ends the stream."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        attach = channel.stream_stream(
            METHOD,
            request_serializer=wire.GatewayMessage.SerializeToString,
            response_deserializer=wire.ReplicaMessage.FromString,
        )
        call = attach(iter(messages), metadata=((SECRET_METADATA_KEY, secret),))
        return (await call.code()).name


async def test_another_version_is_turned_away():
    hello = wire.Hello(protocol_version=999, gateway_id="g")
    async with a_side() as side:
        status = await attach_with(side.port, wire.GatewayMessage(hello=hello))
        assert status == "FAILED_PRECONDITION"


@pytest.mark.parametrize("first", [[], [wire.GatewayMessage()]])
async def test_a_stream_must_begin_with_hello(first: list[wire.GatewayMessage]):
    async with a_side() as side:
        assert await attach_with(side.port, *first) == "INVALID_ARGUMENT"
        assert await attach_with(side.port, *first, secret="") == "UNAUTHENTICATED"


async def test_finish_choice_reaches_the_replica():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear) as client:
        await until(heard(ear, "open"))
        client.finish_choice("r", 2, 3)
        await until(lambda: side.finished == [("r", 2, 3)])


async def test_a_replica_hears_of_a_request_that_will_be_handed_over_to_it():
    ear = Ear()
    handoff = HandoffIn(5, 2.5)
    asked = EngineRequest(
        "r", (1, 2, 3), SamplingParams(max_tokens=9), b"r" * 32, emitted_token_ids=(4,)
    )
    async with a_side() as side, a_client(side.port, ear) as client:
        await until(heard(ear, "open"))
        client.expect_handoff(asked, handoff)
        await until(lambda: bool(side.expected))
        ((gateway_id, told),) = side.expected
        assert gateway_id == "g"
        assert (told.request_id, told.root, told.handoff) == ("r", b"r" * 32, handoff)
        assert told.prompt_token_ids == (1, 2, 3, 4)
        client.forget_handoff("r")
        await until(lambda: side.forgotten == ["r"])


async def test_a_reader_that_stops_gets_everything_later_in_few_messages():
    # A gateway that does not read at all: the transport fills up, then steps are merged.
    async with a_side() as side, grpc.aio.insecure_channel(f"127.0.0.1:{side.port}") as channel:
        attach = channel.stream_stream(
            METHOD,
            request_serializer=wire.GatewayMessage.SerializeToString,
            response_deserializer=wire.ReplicaMessage.FromString,
        )
        call = attach(metadata=((SECRET_METADATA_KEY, SECRET),))
        hello = wire.Hello(protocol_version=1, gateway_id="g")
        await call.write(wire.GatewayMessage(hello=hello))
        await until(lambda: side.server.has_gateway("g"))
        started = time.monotonic()
        for number in range(20_000):
            side.say(*range(number * 10, number * 10 + 10))
            if number % 20 == 0:
                await asyncio.sleep(0)
        assert time.monotonic() - started < 5.0
        tokens: list[int] = []
        num_messages = 0
        while len(tokens) < 200_000:
            message = await call.read()
            num_messages += message.WhichOneof("kind") == "step"
            tokens += [t for entry in message.step.entries for t in entry.token_ids]
        assert tokens == list(range(200_000))
        assert num_messages < 4_000
        call.cancel()


async def test_a_cut_connection_goes_on_without_a_gap():
    ear = Ear()
    async with a_side() as side:
        between = Wire(side.port)
        async with between.open() as port, a_client(port, ear):
            await until(heard(ear, "open"))
            for token in range(300):
                side.say(token)
                if token % 100 == 50:
                    between.cut()
                await asyncio.sleep(0.001)
            await until(lambda: len(ear.token_ids()) == 300)
            assert ear.token_ids() == list(range(300))
            # A client that is still coming back when the wire is cut again notices one break.
            num_breaks = ear.events.count("break")
            assert 1 <= num_breaks <= 3
            assert ear.events == ["open", *["break", "open"] * num_breaks]
            assert side.lost == []


async def test_what_a_gateway_says_after_each_break_reaches_the_replica():
    ear = Ear()
    async with a_side() as side:
        between = Wire(side.port)
        async with between.open() as port, a_client(port, ear, resume_timeout_s=20) as client:
            await until(heard(ear, "open"))
            for number in range(3):
                between.cut()
                await until(lambda: ear.events[-1] == "break")
                await until(lambda: ear.events[-1] == "open")
                client.finish_choice("r", 0, number)
                told = ("r", 0, number)
                await until(lambda told=told: side.finished[-1:] == [told], timeout_s=2.0)
        await until(lambda: senders() == [], timeout_s=2.0)


def senders() -> list[str]:
    """Tasks that hand messages of gateways to streams."""
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    return [name for name in names if "_send" in name or "_consume_request_iterator" in name]


async def test_a_gateway_that_stays_away_is_given_up_on_both_sides():
    ear = Ear()
    async with a_side(gateway_grace_s=0.2) as side:
        between = Wire(side.port)
        async with between.open() as port, a_client(port, ear, resume_timeout_s=0.2):
            await until(heard(ear, "open"))
            between.is_up = False
            between.cut()
            await until(heard(ear, "open", "break", "lost"))
            await until(lambda: side.lost == ["g"])
            assert not side.server.has_gateway("g")
            between.is_up = True
            await until(heard(ear, "open", "break", "lost", "open"))


async def test_a_replica_process_that_was_replaced_is_not_resumed():
    ear = Ear()
    async with a_side("one") as side, a_client(side.port, ear):
        await until(heard(ear, "open"))
        port = side.port
        await side.server._server.stop(0)
        async with a_side("two", port=port):
            await until(heard(ear, "open", "break", "lost", "open"))


async def test_a_goodbye_is_a_loss_at_once():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear, resume_timeout_s=60):
        await until(heard(ear, "open"))
        side.say(1)
        await side.server.close("the replica shuts down")
        await until(lambda: "lost" in ear.events, timeout_s=0.5)
        assert ear.token_ids() == [1]


async def test_a_gateway_that_attaches_twice_is_heard_once():
    old, new = Ear(), Ear()
    async with a_side() as side, a_client(side.port, old):
        await until(heard(old, "open"))
        hello = wire.Hello(protocol_version=1, gateway_id="g", incarnation="one")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{side.port}") as channel:
            attach = channel.stream_stream(
                METHOD,
                request_serializer=wire.GatewayMessage.SerializeToString,
                response_deserializer=wire.ReplicaMessage.FromString,
            )
            call = attach(metadata=((SECRET_METADATA_KEY, SECRET),))
            await call.write(wire.GatewayMessage(hello=hello))
            welcome = await call.read()
            assert welcome.welcome.resumed
            assert new.events == []
            call.cancel()


async def test_nobody_listening_is_tried_again_until_somebody_does(free_port):
    ear = Ear()
    port = free_port()
    async with a_client(port, ear):
        await asyncio.sleep(0.1)
        assert ear.events == []
        async with a_side(port=port):
            await until(heard(ear, "open"))


async def test_a_gateway_that_asks_for_a_snapshot_gets_all_its_parts_in_order():
    ear = Ear()
    async with a_side() as side, a_client(side.port, ear) as client:
        await until(lambda: "open" in ear.events)
        client.ask_kv_snapshot()
        await until(lambda: len(ear.steps) == 2)
    assert tuple(part for step in ear.steps for part in step.kv_snapshots) == SNAPSHOT


async def test_changes_of_the_prefix_cache_go_only_to_gateways_that_asked_for_it():
    batch = KvEventBatch(1, 7, (KvEvent("stored", (b"d" * 32,)),))
    ear, deaf = Ear(), Ear()
    async with (
        a_side() as side,
        a_client(side.port, ear, gateway_id="ear") as client,
        a_client(side.port, deaf, gateway_id="deaf"),
    ):
        await until(lambda: "open" in ear.events and "open" in deaf.events)
        client.ask_kv_snapshot()
        await until(lambda: len(ear.steps) == 2)
        side.server.publish({}, REPORT, batch)
        await until(lambda: len(ear.steps) == 3 and len(deaf.steps) == 1)
    assert ear.steps[2].kv_events == (batch,)
    assert deaf.steps[0].kv_events == ()
