"""Engine settings under vLLM's names; a bad value names itself and what was expected."""

from dataclasses import dataclass
from typing import Literal, get_args

from replicas.speculation.config import SpeculationConfig

Role = Literal["mixed", "prefill", "decode"]
Dtype = Literal["auto", "bfloat16", "float32"]
KvCacheDtype = Literal["auto", "bf16", "int8", "fp8"]
Quantization = Literal["none", "int8"]
SchedulingPolicy = Literal["fcfs", "priority"]
EvictionPolicy = Literal["lru", "lfu"]
KernelBackend = Literal["auto", "reference", "cpu", "triton"]
PreemptionMode = Literal["auto", "swap", "recompute"]
WriteBackPolicy = Literal["never", "on_eviction", "on_second_use", "always"]


def _at_least(least: int, **settings: int) -> None:
    for name, value in settings.items():
        if value < least:
            raise ValueError(f"{name}={value}: expected at least {least}")


def _one_of(choices: object, **settings: str) -> None:
    for name, value in settings.items():
        if value not in get_args(choices):
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(get_args(choices))}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler and the allocator may do; pure numbers, no model.

    block_size: token positions of one KV block.
    num_blocks: KV blocks to share out; the engine replaces it with what memory allows.
    max_num_seqs: most requests that run at once (the batch cap, lecture 11).
    max_num_batched_tokens: token budget of one step (Sarathi-Serve).
    max_model_len: longest prompt and output together, in tokens; the engine lowers it to what the
        model was made for.
    long_prefill_token_threshold: most tokens that one request may have in a step; 0 means the
        whole budget.
    max_prefill_tokens: prompt tokens with which a step takes no further prompt (SGLang), or as many
        as it has tokens of running outputs, if those are more; 0 means what fills the processor:
        64 on a CPU, the whole budget on a GPU.
    prefill_overtakes_decode: whether prompts of max_prefill_tokens or more that come in while a
        step of outputs is computed, or wait together for the next one, pass it between two layers,
        one after the other, as many as a step may hold: while at most two wait, and no output of
        the step may have only a few tokens. On a CPU, with async_scheduling.
    watermark: share of blocks that admission leaves free (lecture 10, 10.5).
    headroom_blocks: blocks beyond its prompt that a request must find free to be admitted.
    max_num_queued_reqs: longest waiting line; a request beyond it is refused with a time to retry
        after.
    max_num_queued_tokens: most prompt tokens in the waiting line; a request beyond it is refused
        with a time to retry after.
    max_preemptions: a request preempted this often is not chosen as a victim again.
    pending_block_timeout_s: longest wait for a block that another request is computing.
    scheduling_policy: order of the waiting line: as they came, or lowest priority value first.
    enable_prefix_caching: share the full blocks of equal prefixes, within and across requests.
    eviction_policy: which cached block is reused first when there are no empty ones: the one that
        has not been used for longest, or the one that was used least often.
    preemption_mode: what becomes of a preempted request's KV: copied to host memory, computed
        again, or (auto) the cheaper of both by measured speeds.
    store_write_back: which full blocks are copied to host memory and into the block store: none,
        those about to be reused, those found a second time, or all.
    num_host_slots: blocks that host memory holds; the engine replaces it with what swap_space_bytes
        allows.
    async_scheduling: plan step k + 1 while step k runs (NanoFlow); off, each step is planned
        when the last one has ended.
    speculation: whether tokens are guessed, and who guesses them.
    """

    block_size: int = 16
    num_blocks: int = 512
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    long_prefill_token_threshold: int = 0
    max_prefill_tokens: int = 0
    prefill_overtakes_decode: bool = True
    watermark: float = 0.01
    headroom_blocks: int = 1
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 1_000_000
    max_preemptions: int = 4
    pending_block_timeout_s: float = 10.0
    scheduling_policy: SchedulingPolicy = "fcfs"
    enable_prefix_caching: bool = True
    eviction_policy: EvictionPolicy = "lru"
    async_scheduling: bool = True
    preemption_mode: PreemptionMode = "auto"
    store_write_back: WriteBackPolicy = "on_second_use"
    num_host_slots: int = 0
    speculation: SpeculationConfig = SpeculationConfig()

    def __post_init__(self) -> None:
        _at_least(1, block_size=self.block_size, num_blocks=self.num_blocks)
        _at_least(1, max_num_seqs=self.max_num_seqs, max_model_len=self.max_model_len)
        _at_least(0, long_prefill_token_threshold=self.long_prefill_token_threshold)
        _at_least(0, max_prefill_tokens=self.max_prefill_tokens)
        _at_least(0, headroom_blocks=self.headroom_blocks, max_preemptions=self.max_preemptions)
        _at_least(1, max_num_queued_reqs=self.max_num_queued_reqs)
        _at_least(1, max_num_queued_tokens=self.max_num_queued_tokens)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: expected at least "
                f"max_num_seqs={self.max_num_seqs}, so that every running request can decode"
            )
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark={self.watermark}: expected a share in [0, 1)")
        if self.pending_block_timeout_s < 0:
            raise ValueError(
                f"pending_block_timeout_s={self.pending_block_timeout_s}: expected 0 or more"
            )
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(
                f"scheduling_policy={self.scheduling_policy!r}: expected fcfs or priority"
            )
        _one_of(PreemptionMode, preemption_mode=self.preemption_mode)
        _one_of(WriteBackPolicy, store_write_back=self.store_write_back)
        _at_least(0, num_host_slots=self.num_host_slots)
        if self.eviction_policy not in ("lru", "lfu"):
            raise ValueError(f"eviction_policy={self.eviction_policy!r}: expected lru or lfu")

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of one request in one step."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free."""
        return int(self.watermark * self.num_blocks)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything one engine is built from.

    model: demo, a Hugging Face id, a local folder or a GGUF file; an engine itself reads the folder
        that was prepared from it (replicas.models.prepared_model).
    role: which part of a request an engine takes: all of it, the prompt, or the output.
    dtype: type of weights and activations; auto takes the one the model was saved in.
    quantization: none computes with weights as they are; int8 keeps a byte a number and a scale for
        each output, and multiplies them with activations as int8, a scale for every 32.
    kv_cache_dtype: type of K and V in memory; auto takes dtype. int8 and fp8 (e4m3) keep a byte a
        number and a scale for each token and head: about half the memory of bf16.
    kernels: back end of the model's arithmetic; auto takes the fastest one that loads.
    deterministic: every reduction in an order that depends on the row alone (DESIGN 3).
    kv_cache_memory_bytes: memory for K and V of one engine; 0 takes kv_cache_memory_share of RAM,
        or on a GPU what gpu_memory_utilization leaves.
    kv_cache_memory_share: share of RAM for K and V, divided among the engines of a machine.
    engines_per_node: engines that share one machine's RAM.
    gpu_memory_utilization: share of a GPU's memory for weights, K and V together.
    swap_space_bytes: host memory of one engine for blocks of preempted requests and for those on
        their way to the block store and back; 0 does without both.
    num_blocks_override: fixes the number of blocks whatever the memory; 0 means off.
    num_threads: threads of one step; 0 means one for every core that the engine may use, and then
        each is bound to its core.
    scheduler: what the scheduler and the allocator may do; num_blocks and max_model_len in it are
        what the engine was asked for.
    """

    model: str
    scheduler: SchedulerConfig = SchedulerConfig()
    role: Role = "mixed"
    dtype: Dtype = "auto"
    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDtype = "auto"
    kernels: KernelBackend = "auto"
    deterministic: bool = False
    kv_cache_memory_bytes: int = 0
    kv_cache_memory_share: float = 0.25
    engines_per_node: int = 1
    gpu_memory_utilization: float = 0.9
    swap_space_bytes: int = 256 * 1024 * 1024
    num_blocks_override: int = 0
    num_threads: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "bfloat16", "float32"):
            raise ValueError(f"dtype={self.dtype!r}: expected auto, bfloat16 or float32")
        _one_of(Quantization, quantization=self.quantization)
        if self.kv_cache_dtype not in ("auto", "bf16", "int8", "fp8"):
            raise ValueError(
                f"kv_cache_dtype={self.kv_cache_dtype!r}: expected auto, bf16, int8 or fp8"
            )
        if self.kernels not in ("auto", "reference", "cpu", "triton"):
            raise ValueError(f"kernels={self.kernels!r}: expected auto, reference, cpu or triton")
        if self.role not in ("mixed", "prefill", "decode"):
            raise ValueError(f"role={self.role!r}: expected mixed, prefill or decode")
        _at_least(0, kv_cache_memory_bytes=self.kv_cache_memory_bytes)
        _at_least(0, swap_space_bytes=self.swap_space_bytes)
        _at_least(0, num_blocks_override=self.num_blocks_override, num_threads=self.num_threads)
        _at_least(1, engines_per_node=self.engines_per_node)
        for name in ("kv_cache_memory_share", "gpu_memory_utilization"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name}={value}: expected a share in (0, 1]")
