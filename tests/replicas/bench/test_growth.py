"""Growth is measured for every pair that memory holds, on decode steps alone."""

from pathlib import Path

import numpy as np
import pytest

from replicas.batch import Batch, Sampled
from replicas.bench.growth import DecodeCell, Growth, PromptCell, growth_table, measure_growth
from replicas.bench.prompt_skipping import PromptSkippingRunner
from replicas.bench.workload import WorkloadRequest
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.engine_commands import Submit
from tests.replicas.tiny_models import save_tiny


class CountingRunner:
    """Notes the tokens of every batch that reaches it."""

    def __init__(self) -> None:
        self.num_tokens: list[int] = []

    def run(self, batch: Batch, nearly_done: object) -> Sampled:
        self.num_tokens.append(batch.num_tokens)
        return Sampled(np.zeros(len(batch.samples), dtype=np.int64))

    def close(self) -> None:
        self.num_tokens.append(-1)


def test_prompts_are_scheduled_and_not_computed() -> None:
    below = CountingRunner()
    config = SchedulerConfig(num_blocks=64, max_num_seqs=4, async_scheduling=False)
    engine = Engine(config, PromptSkippingRunner(below), clock=lambda: 0.0)
    for number in range(3):
        prompt = WorkloadRequest(tuple(range(number, number + 40)), 5)
        engine.inbox.put(Submit(prompt.to_engine(f"r{number}", bytes(32))))
    outputs = engine.run_until_idle()
    assert below.num_tokens == [3, 3, 3, 3]
    assert sum(len(entry.token_ids) for one in outputs for entry in one.entries) == 15
    engine.close()
    assert below.num_tokens[-1] == -1


@pytest.mark.slow
def test_every_pair_that_fits_has_a_cell_and_the_others_are_counted(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama").prepared
    config = EngineConfig(
        model=model.folder,
        dtype="float32",
        kernels="reference",
        num_threads=1,
        num_blocks_override=24,
    )
    growth = measure_growth(model, config, requests=(1, 4), contexts=(32, 128), num_steps=3)
    cells = [(cell.num_requests, cell.context_tokens) for cell in growth.decode]
    assert cells == [(1, 32), (4, 32), (1, 128)]
    assert growth.num_left_out == 1
    assert all(cell.step_s > 0 and cell.scheduler_s > 0 for cell in growth.decode)
    assert [cell.prompt_tokens for cell in growth.prompts] == [31, 127]


def test_the_table_has_a_dash_where_memory_ends() -> None:
    cells = (DecodeCell(1, 128, 0.01, 5e-5), DecodeCell(2, 128, 0.01, 6e-5))
    growth = Growth((*cells, DecodeCell(1, 8192, 0.02, 5e-5)), (PromptCell(127, 0.1),), 1)
    lines = growth_table(growth).splitlines()
    assert "| 1 | 100; 50 | 50; 50 |" in lines
    assert "| 2 | 200; 60 | - |" in lines
    assert "| 127 | 0.100 | 1270 |" in lines
