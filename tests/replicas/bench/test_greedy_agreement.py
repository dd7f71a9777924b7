"""Agreement counts what two precisions would say, given the same words before."""

from pathlib import Path

import pytest

from replicas.bench.greedy_agreement import Agreement, agreement_table, greedy_agreement
from replicas.config import EngineConfig
from tests.replicas.tiny_models import random_prompts, save_tiny


def test_tokens_before_the_first_other_one_are_counted_apart() -> None:
    one = Agreement((True, True, False, True))
    assert one.share == 0.75
    assert one.share_before_parting == 0.5
    assert Agreement((True, True)).share_before_parting == 1.0


def test_the_table_has_mean_median_and_least() -> None:
    table = agreement_table([Agreement((True, False)), Agreement((True, True))]).splitlines()
    assert table[0].startswith("| 2 greedy outputs of 2 tokens")
    assert table[2].endswith("| 75.0 % | 75.0 % | 50.0 % |")


def test_outputs_are_compared_token_by_token(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama").prepared
    config = EngineConfig(model.folder, kernels="reference", num_blocks_override=20, num_threads=2)
    prompts = random_prompts([5, 9])
    results = greedy_agreement(model, config, prompts, num_tokens=12)
    assert [len(each.is_same) for each in results] == [12, 12]
    # A random model hardly prefers one token, and yet most are the same.
    assert sum(each.share for each in results) / 2 == pytest.approx(1, abs=0.3)
