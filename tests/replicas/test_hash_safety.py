"""Nobody is served K and V of tokens that are not their own, whatever names the blocks bear."""

from dataclasses import replace

import pytest

from kvstore.block_hash import block_hashes
from tests.replicas.engine_harness import (
    BLOCK_SIZE,
    alone,
    engine,
    prompt,
    request,
    run,
    submit,
    tokens,
)


@pytest.mark.parametrize("order", ["victim first", "liar first"])
def test_a_request_with_the_names_of_anothers_blocks_gets_none_of_them(order):
    honest = request("honest", prompt(17, seed=1))
    names = tuple(block_hashes(honest.prompt_token_ids, block_size=BLOCK_SIZE, root=honest.root))
    liar = replace(request("liar", prompt(17, seed=2)), block_hashes=names)
    target = engine()
    for one in (honest, liar) if order == "victim first" else (liar, honest):
        submit(target, one)
        found = tokens(run(target))
        assert found == alone(replace(one, block_hashes=()))
    assert target.stats.hit_tokens_total == 0
