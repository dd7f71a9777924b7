"""What the benchmark of forks counts, on an engine without a model."""

from replicas.bench.forks import NUM_CHOICES, OUTPUT_TOKENS, PROMPT_TOKENS, arms, measure
from tests.replicas.engine_harness import VOCAB_SIZE, config, engine, prompt


def test_the_arms_compute_the_prompt_once_partly_again_or_eight_times():
    target = engine(
        config(
            block_size=16,
            num_blocks=1024,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            max_model_len=2048,
        )
    )
    tokens = tuple(prompt(PROMPT_TOKENS))
    assert max(tokens) < VOCAB_SIZE
    found = {name: measure(target, each) for name, each in arms(tokens, "0").items()}
    forked, shared, own = found.values()
    assert forked.prompt_tokens == PROMPT_TOKENS + NUM_CHOICES - 1
    assert forked.prompt_tokens < shared.prompt_tokens < own.prompt_tokens
    assert own.prompt_tokens == NUM_CHOICES * PROMPT_TOKENS
    most = PROMPT_TOKENS // 16 + NUM_CHOICES * (OUTPUT_TOKENS // 16) + NUM_CHOICES
    assert forked.held_blocks <= most
    assert forked.held_blocks <= shared.held_blocks < own.held_blocks
    assert (shared.copied_blocks, own.copied_blocks) == (0, 0)
