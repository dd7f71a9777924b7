"""The cost of moves is shown for each kind of move."""

from pathlib import Path

from replicas.bench.move_cost import moves_table
from replicas.config import EngineConfig, SchedulerConfig
from tests.replicas.tiny_models import save_tiny


def test_every_kind_of_move_has_a_row(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama")
    config = EngineConfig(
        model=model.prepared.folder,
        scheduler=SchedulerConfig(block_size=4, max_model_len=256),
        num_blocks_override=128,
        num_threads=1,
        dtype="float32",
        kernels="reference",
    )
    head, _line, *rows = moves_table(model.prepared, config).splitlines()
    assert head == "| move of 1.5 KiB | µs a block | GiB/s |"
    names = [row.split("|")[1].strip() for row in rows]
    assert names == ["block to block", "out to host memory", "in from host memory"]
    assert all(float(row.split("|")[2]) > 0 for row in rows)
