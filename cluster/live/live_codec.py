"""Turns an engine's views into messages of the token stream and back, and joins waiting ones."""

from dataclasses import replace

from cluster.wire import token_stream_pb2 as wire
from replicas.engine_view import MAX_LATENCIES, MAX_SPANS, EngineView, RowKind, Span


def encode_view(view: EngineView) -> wire.EngineView:
    """A part of a step's message; every request id is in it once."""
    places: dict[str, int] = {}
    spans = [
        wire.Span(
            lane=span.lane,
            request=places.setdefault(span.request_id, len(places)),
            choice=span.choice,
            kind=span.kind,
            num_tokens=span.num_tokens,
            started_at=span.started_at,
            ended_at=span.ended_at,
        )
        for span in view.spans
    ]
    return wire.EngineView(
        at=view.at,
        request_ids=places,
        spans=spans,
        num_hidden_rows=view.num_hidden_rows,
        cells=view.cells,
        blocks_per_cell=view.blocks_per_cell,
        ttfts_s=view.ttfts_s,
        tpots_s=view.tpots_s,
    )


def decode_view(message: wire.EngineView) -> EngineView:
    """The view that was encoded."""
    return EngineView(
        at=message.at,
        spans=tuple(
            Span(
                lane=span.lane,
                request_id=message.request_ids[span.request],
                choice=span.choice,
                kind=RowKind(span.kind),
                num_tokens=span.num_tokens,
                started_at=span.started_at,
                ended_at=span.ended_at,
            )
            for span in message.spans
        ),
        num_hidden_rows=message.num_hidden_rows,
        cells=message.cells,
        blocks_per_cell=message.blocks_per_cell,
        ttfts_s=tuple(message.ttfts_s),
        tpots_s=tuple(message.tpots_s),
    )


def join_views(earlier: EngineView | None, later: EngineView | None) -> EngineView | None:
    """Two views as one: what happened in both, of bounded size, and the later one's blocks."""
    if earlier is None or later is None:
        return later or earlier
    return replace(
        later,
        spans=(earlier.spans + later.spans)[-MAX_SPANS:],
        ttfts_s=(earlier.ttfts_s + later.ttfts_s)[-MAX_LATENCIES:],
        tpots_s=(earlier.tpots_s + later.tpots_s)[-MAX_LATENCIES:],
    )
