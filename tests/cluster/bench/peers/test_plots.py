"""Every plot of growth is a file that names its axes."""

import pytest

from cluster.bench.peers.plots import draw_growth

GROWTH = {
    "decode": [
        {"num_requests": 1, "context_tokens": 128, "step_s": 0.01, "scheduler_s": 50e-6},
        {"num_requests": 8, "context_tokens": 128, "step_s": 0.02, "scheduler_s": 90e-6},
        {"num_requests": 1, "context_tokens": 8192, "step_s": 0.02, "scheduler_s": 51e-6},
    ],
    "prompts": [{"prompt_tokens": 127, "seconds": 0.1}],
}


@pytest.mark.slow
def test_every_plot_names_its_axes_and_lines(tmp_path):
    names = draw_growth(GROWTH, tmp_path)
    assert names == ["growth-throughput.svg", "growth-scheduler.svg", "growth-prompts.svg"]
    throughput = (tmp_path / names[0]).read_text()
    for said in ("running requests", "output tokens/s", "context 8,192 tokens"):
        assert said in throughput
