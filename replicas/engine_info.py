"""What an engine turned out to be once it was built: sizes, back end, start-up times."""

from dataclasses import dataclass

from kvstore.block_store import BlockLayout


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that do not change while the engine lives.

    fingerprint: of the model (PreparedModel). kv_cache_dtype: what K and V are kept in, as
    kvstore.block_store names it; empty in a stand-in that keeps none. block_bytes: K and V of one
    block in all layers.
    phases: name and seconds of each part of the start-up, in order. layout: of a block outside the
    engine; None for an engine without real blocks. num_host_slots: blocks that the host tier holds.
    quantization: of the weights, as EngineConfig names it.
    """

    model: str
    fingerprint: str
    role: str
    dtype: str
    kernels: str
    deterministic: bool
    num_threads: int
    num_blocks: int
    block_size: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    phases: tuple[tuple[str, float], ...] = ()
    layout: BlockLayout | None = None
    num_host_slots: int = 0
    kv_cache_dtype: str = ""
    quantization: str = "none"
