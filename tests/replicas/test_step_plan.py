"""A step that only moves blocks is a step too."""

from replicas.batch import CopyBlock
from replicas.block_table import BlockTables
from replicas.step_plan import StepPlan


def test_a_plan_without_rows_becomes_a_batch_of_moves_alone():
    tables = BlockTables(max_num_seqs=2, max_blocks=4)
    planned = StepPlan(8, 8).seal(1, tables, 4, (CopyBlock(0, 1), CopyBlock(1, 2)))
    batch = planned.batch
    assert batch.moves == (CopyBlock(0, 1), CopyBlock(1, 2))
    assert (batch.num_rows, batch.num_tokens, batch.samples) == (0, 0, ())
    assert batch.query_start.tolist() == [0]
    assert batch.block_tables.shape == (0, 0)
