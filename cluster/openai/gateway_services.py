"""Everything a gateway's routes stand on, handed in as one value."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.config import GatewayConfig
from cluster.dispatch.dispatcher import Dispatcher
from cluster.live.live_feed import LiveFeed
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from replicas.models.prepared_model import PreparedModel


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """The parts of one gateway process.

    max_model_len: most tokens of prompt and output together that the replicas allow.
    block_size, num_blocks: the smallest replica's KV cache, in tokens per block and in blocks.
    live: what the page watches; None where there is no cluster to watch.
    metrics: what is observed here and heard from the other processes.
    clock: Unix seconds. random_bits: that many random bits, for seeds and ids.
    """

    model: PreparedModel
    config: GatewayConfig
    tokenizer: TextTokenizer
    template: ChatTemplate
    dispatcher: Dispatcher
    max_model_len: int
    block_size: int
    num_blocks: int
    version: str
    live: LiveFeed | None = None
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    clock: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits

    @property
    def served_name(self) -> str:
        """The name clients know the model by."""
        return self.config.served_model_name or self.model.name

    @property
    def system_fingerprint(self) -> str:
        """Changes when answers to one seed may change: with the version and with the weights."""
        return f"pagoda-{self.version}-{self.model.fingerprint[:12]}"

    def new_id(self) -> str:
        """A fresh id of 32 hexadecimal digits."""
        return f"{self.random_bits(128):032x}"
