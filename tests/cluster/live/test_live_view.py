"""The engine's view: nothing while nobody watches, the truth of lanes and blocks when one does."""

import pytest

from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.engine import Engine
from replicas.engine_commands import Submit, Watch
from replicas.engine_view import (
    LEVELS,
    MAX_CELLS,
    MAX_LANES,
    RowKind,
    StepRow,
    ViewRecorder,
    block_cells,
)
from replicas.request import EngineRequest, SamplingParams
from replicas.simulated_runner import SimulatedRunner


class Clock:
    """Time that passes when it is told to, and a little with every step."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def an_engine(clock, **overrides):
    values = {
        "block_size": 4,
        "num_blocks": 32,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "async_scheduling": False,
    }
    config = SchedulerConfig(**(values | overrides))
    runner = SimulatedRunner(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        vocab_size=97,
    )
    return Engine(config, runner, clock=clock, end_token_ids=frozenset())


def submit(engine, request_id, *, prompt_tokens=10, max_tokens=6):
    engine.inbox.put(
        Submit(
            EngineRequest(
                request_id,
                tuple(range(prompt_tokens)),
                SamplingParams(max_tokens=max_tokens),
                root=b"root",
            )
        )
    )


def run(engine, clock, *, step_s=0.05):
    """Every view until the engine is idle."""
    views = []
    while True:
        clock.now += step_s
        output = engine.step()
        if output is not None and output.view is not None:
            views.append(output.view)
        if output is None and not engine.has_work:
            return views


def test_an_engine_that_nobody_watches_sends_no_view(clock):
    engine = an_engine(clock)
    submit(engine, "a")
    assert run(engine, clock) == []


def test_a_watched_request_shows_its_prefill_and_then_its_decodes_in_one_lane(clock):
    engine = an_engine(clock)
    engine.inbox.put(Watch(60.0))
    submit(engine, "a", prompt_tokens=10, max_tokens=6)
    spans = [span for view in run(engine, clock) for span in view.spans]
    assert {(span.lane, span.request_id, span.choice) for span in spans} == {(0, "a", 0)}
    tokens = dict.fromkeys(RowKind, 0)
    for span in spans:
        tokens[span.kind] += span.num_tokens
    # The last token that is sampled is never computed.
    assert tokens == {RowKind.PREFILL: 10, RowKind.DECODE: 5, RowKind.RECOMPUTE: 0}
    assert all(span.ended_at >= span.started_at for span in spans)


def test_a_preempted_request_shows_that_it_computes_again(clock):
    engine = an_engine(clock, num_blocks=9, watermark=0.0, enable_prefix_caching=False)
    engine.inbox.put(Watch(600.0))
    for name in "abc":
        submit(engine, name, prompt_tokens=8, max_tokens=16)
    kinds = {span.kind for view in run(engine, clock) for span in view.spans}
    assert engine.stats.preemptions_total > 0
    assert RowKind.RECOMPUTE in kinds


def test_views_keep_their_distance_while_there_is_work(clock):
    engine = an_engine(clock)
    engine.inbox.put(Watch(60.0))
    submit(engine, "a", max_tokens=40)
    times = [view.at for view in run(engine, clock)]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    # The last one need not wait: the engine goes idle.
    assert gaps
    assert all(gap >= 0.2 - 1e-9 for gap in gaps[:-1])


def test_an_idle_engine_answers_a_watch_with_its_blocks(clock):
    engine = an_engine(clock)
    submit(engine, "a", prompt_tokens=10)
    run(engine, clock)
    engine.inbox.put(Watch(1.0))
    output = engine.step()
    cached = 2 * 0 + 1 * LEVELS + LEVELS - 1
    assert output.view.cells.count(cached) == output.stats.num_cached_blocks > 0
    assert output.view.spans == ()


def test_a_watch_runs_out(clock):
    engine = an_engine(clock)
    engine.inbox.put(Watch(1.0))
    engine.step()
    clock.now += 5.0
    submit(engine, "a")
    assert run(engine, clock) == []


def test_latencies_come_with_the_view_that_follows_them(clock):
    engine = an_engine(clock)
    engine.inbox.put(Watch(60.0))
    submit(engine, "a", prompt_tokens=10, max_tokens=6)
    views = run(engine, clock, step_s=0.05)
    assert [ttft for view in views for ttft in view.ttfts_s] == [pytest.approx(0.0, abs=0.06)]
    assert [tpot for view in views for tpot in view.tpots_s] == [pytest.approx(0.05)]


def test_rows_beyond_the_lanes_are_counted(clock):
    recorder = ViewRecorder(clock)
    recorder.watch(10.0)
    rows = [StepRow(lane, f"r{lane}", 0, RowKind.DECODE, 1) for lane in range(MAX_LANES + 3)]
    recorder.note_step(rows, started_at=100.0, ended_at=100.01)
    view = recorder.take(lambda: b"", is_idle=False)
    assert len(view.spans) == MAX_LANES
    assert view.num_hidden_rows == 3


def test_a_pause_breaks_a_bar_and_steps_in_a_row_do_not(clock):
    recorder = ViewRecorder(clock)
    recorder.watch(10.0)
    row = StepRow(0, "a", 0, RowKind.DECODE, 1)
    for started_at in (1.0, 1.02, 2.0):
        recorder.note_step([row], started_at=started_at, ended_at=started_at + 0.02)
    spans = recorder.take(lambda: b"", is_idle=False).spans
    assert [(s.started_at, s.ended_at, s.num_tokens) for s in spans] == [
        (1.0, 1.04, 2),
        (2.0, 2.02, 1),
    ]


def test_a_view_that_is_dear_comes_less_often(clock):
    recorder = ViewRecorder(clock)
    recorder.watch(100.0)

    def slow_states():
        clock.now += 0.1
        return b""

    assert recorder.take(slow_states, is_idle=False) is not None
    clock.now += 4.0
    assert recorder.take(slow_states, is_idle=False) is None
    clock.now += 1.0
    assert recorder.take(slow_states, is_idle=False) is not None


def test_few_blocks_get_a_cell_each():
    cells, per_cell = block_cells(bytes([0, 1, 2, 3]))
    assert per_cell == 1
    assert [cell // LEVELS for cell in cells] == [0, 1, 2, 3]


def test_many_blocks_share_cells_that_show_what_most_of_them_are():
    states = bytes([2, 2, 3, 0] * MAX_CELLS)
    cells, per_cell = block_cells(states)
    assert (per_cell, len(cells)) == (4, MAX_CELLS)
    assert {divmod(cell, LEVELS) for cell in cells} == {(2, round(0.75 * (LEVELS - 1)))}


def test_the_allocator_tells_the_four_states_of_a_block_apart():
    allocator = BlockAllocator(num_blocks=4, block_size=4)
    held, shared, cached = allocator.allocate(3)
    allocator.share([shared])
    allocator.publish([cached], [b"name"], range(4), root=b"root")
    allocator.free([cached])
    states = allocator.states()
    assert [states[block] for block in (held, shared, cached)] == [2, 3, 1]
    assert sorted(states) == [0, 1, 2, 3]
