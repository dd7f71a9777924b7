"""CSV traces give arrival times from their start and the lengths they hold."""

from pathlib import Path

import pytest

from loadtest.datasets.length_traces import read_azure, read_burstgpt, read_length_pairs

DATA = Path(__file__).parent / "data"


def test_azure_times_keep_all_seven_digits() -> None:
    rows = list(read_azure(DATA / "azure.csv"))
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [
        (374, 44),
        (396, 109),
        (879, 55),
    ]
    assert rows[1].at_s == pytest.approx(4.314579, abs=1e-6)
    assert rows[2].at_s == pytest.approx(60.0, abs=1e-6)


def test_burstgpt_leaves_out_requests_that_got_no_answer() -> None:
    rows = list(read_burstgpt(DATA / "burstgpt.csv"))
    assert [(row.at_s, row.input_tokens, row.output_tokens) for row in rows] == [
        (0.0, 472, 18),
        (113.0, 417, 276),
    ]


def test_length_pairs_have_no_times() -> None:
    rows = list(read_length_pairs(DATA / "lengths.csv"))
    assert [(row.at_s, row.input_tokens) for row in rows] == [(None, 3772), (None, 2015)]


def test_a_file_of_another_kind_is_refused_by_its_columns() -> None:
    with pytest.raises(ValueError, match="ContextTokens"):
        list(read_azure(DATA / "burstgpt.csv"))


@pytest.mark.parametrize(
    ("kind", "count", "mean_input"), [("conv", 19_366, 1154.7), ("code", 8_819, 2047.8)]
)
def test_the_real_azure_traces_are_read_whole(
    shared_dir: Path, kind: str, count: int, mean_input: float
) -> None:
    rows = list(read_azure(shared_dir / "traces" / f"AzureLLMInferenceTrace_{kind}.csv"))
    assert len(rows) == count
    assert sum(row.input_tokens for row in rows) / count == pytest.approx(mean_input, abs=0.1)
    times = [row.at_s for row in rows if row.at_s is not None]
    assert times == sorted(times)
    assert 3400 < times[-1] < 3600


def test_the_real_summarisation_lengths_are_read(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "vidur_arxiv_summarization_lengths.csv"
    assert sum(1 for _ in read_length_pairs(path)) == 28_257
