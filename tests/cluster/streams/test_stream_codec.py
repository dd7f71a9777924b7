"""Messages of the token stream: what goes in comes out, and the generated code is current."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.replica.replica_announcement import BadAnnouncement, ReplicaAnnouncement
from cluster.streams.stream_codec import (
    EngineReport,
    Heartbeat,
    KvEventBatch,
    StepMessage,
    decode_expected_handoff,
    decode_heartbeat,
    decode_step,
    encode_heartbeat,
    encode_step,
)
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_stats import EngineStats
from replicas.handoff import HandoffNews
from replicas.request import (
    FinishReason,
    KvEvent,
    Refusal,
    RefusalReason,
    Timeline,
    TokenEntry,
    TokenLogprob,
)

ROOT = Path(__file__).parents[3]
# The tiers below the device and guesses are the replica's own affair, which its metrics tell of.
STATS_ON_WIRE = [
    field.name
    for field in fields(EngineStats)
    if field.name not in ("tiers", "speculation", "overtaking_prefills_total")
]

ENTRIES = [
    TokenEntry("r", 0, 0, 0),
    TokenEntry("r", 3, 1, 7, token_ids=(0, 5, 49_151), num_cached_tokens=32),
    TokenEntry("r", 0, 0, 1, finish_reason=FinishReason.STOP, stop_token_id=0),
    TokenEntry(
        "r",
        0,
        0,
        0,
        finish_reason=FinishReason.REFUSED,
        refusal=Refusal(RefusalReason.QUEUE_FULL, "full", retry_after_s=0.0),
    ),
    TokenEntry("r", 0, 0, 0, refusal=Refusal(RefusalReason.NEVER_FITS, "too long")),
    TokenEntry("r", 0, 0, 9, finish_reason=FinishReason.LENGTH, timeline=Timeline(1.0, 0.0, 2.5)),
    TokenEntry(
        *("r", 0, 0, 3),
        token_ids=(4,),
        finish_reason=FinishReason.STOP,
        stop_token_id=2,
        logprobs=(TokenLogprob(-0.5, ((4, -0.5), (9, -1.25))), TokenLogprob(0.0)),
    ),
    TokenEntry("r", 1, 0, 1, handoff=HandoffNews(7, "adopted", 1024, 1 << 33, 0.25, "shm")),
    TokenEntry("r", 1, 0, 1, handoff=HandoffNews(0, "stale")),
    *(TokenEntry("r", 0, 0, 0, finish_reason=reason) for reason in FinishReason),
]


def a_report() -> EngineReport:
    values = {name: number for number, name in enumerate(STATS_ON_WIRE, 1)}
    return EngineReport(
        epoch=2, outstanding_tokens=10**9, num_open_requests=3, stats=EngineStats(**values)
    )


def test_a_step_comes_out_as_it_went_in():
    events = (
        KvEvent("stored", (b"\x00" * 32, b"\xff" * 32), parent=b"", token_ids=(1, 2)),
        KvEvent("removed", (b"a",)),
        KvEvent("cleared"),
    )
    step = StepMessage(2**40, tuple(ENTRIES), a_report(), (KvEventBatch(1, 99, events),))
    sent = encode_step(step).SerializeToString()
    assert decode_step(wire.ReplicaMessage.FromString(sent).step) == step


def test_a_heartbeat_comes_out_as_it_went_in():
    heartbeat = Heartbeat(0.25, True, False, a_report())
    sent = encode_heartbeat(heartbeat).SerializeToString()
    assert decode_heartbeat(wire.ReplicaMessage.FromString(sent).heartbeat) == heartbeat


def test_every_statistic_has_its_field_on_the_wire():
    on_wire = [field.name for field in wire.EngineStats.DESCRIPTOR.fields]
    assert on_wire == STATS_ON_WIRE


@pytest.mark.parametrize("plane", ["token_stream", "block_stream"])
def test_the_generated_code_is_what_the_proto_file_gives(tmp_path: Path, plane: str):
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT)),
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        *(f"--python_out={tmp_path}", f"--mypy_out={tmp_path}"),
        f"cluster/wire/{plane}.proto",
    ]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    for name in (f"{plane}_pb2.py", f"{plane}_pb2.pyi"):
        made = (tmp_path / "cluster/wire" / name).read_text()
        assert made == (ROOT / "cluster/wire" / name).read_text(), name


ANNOUNCEMENT = ReplicaAnnouncement("127.0.0.1:5", "mixed", 16, "f00d", 1, 2048, 512)


def test_an_announcement_survives_as_metadata():
    assert ReplicaAnnouncement.from_metadata(ANNOUNCEMENT.to_metadata()) == ANNOUNCEMENT


@pytest.mark.parametrize(
    ("name", "value"), [("address", None), ("block_size", "16"), ("role", "chef")]
)
def test_a_wrong_announcement_names_what_is_wrong(name: str, value: object):
    with pytest.raises(BadAnnouncement, match=name):
        ReplicaAnnouncement.from_metadata({**ANNOUNCEMENT.to_metadata(), name: value})


@pytest.mark.parametrize(
    "message",
    [
        wire.ExpectHandoff(),
        wire.ExpectHandoff(request_id="r", token_ids=[1]),
        wire.ExpectHandoff(request_id="r", deadline_s=1.0),
        wire.ExpectHandoff(request_id="r", token_ids=[1], deadline_s=float("nan")),
    ],
)
def test_an_expected_handoff_that_makes_no_sense_is_refused(message):
    with pytest.raises(ValueError, match="expected"):
        decode_expected_handoff(message)
