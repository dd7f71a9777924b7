"""The output head: a near-tie in bfloat16 is decided by the exact values."""

import torch

from replicas.kernels.select import select_kernels
from replicas.models.output_head import OutputHead

KERNELS = select_kernels("reference", torch.bfloat16, deterministic=False)


def random_rows(count, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator).bfloat16()


def test_the_largest_logit_is_the_one_of_exact_arithmetic():
    weight = random_rows(2000, 64, seed=0)
    # Every row again with its last number a little different: two thousand near-ties.
    twins = weight.clone()
    twins[:, -1] *= 1.01
    weight = torch.cat([weight, twins])
    x = random_rows(40, 64, seed=1) * 3
    exact = x.double() @ weight.double().T
    rounded = (x @ weight.T).float()
    assert (rounded.argmax(-1) != exact.argmax(-1)).any(), "the test has no near-tie to decide"
    logits = OutputHead(weight, KERNELS, KERNELS.pack_linear).logits(x)
    assert logits.dtype == torch.float32
    assert (logits.argmax(-1) == exact.argmax(-1)).all()


def test_the_rest_stays_within_the_rounding_of_its_type():
    weight, x = random_rows(500, 64, seed=2), random_rows(5, 64, seed=3)
    exact = x.double() @ weight.double().T
    logits = OutputHead(weight, KERNELS, KERNELS.pack_linear).logits(x)
    assert torch.allclose(logits.double(), exact, rtol=2**-7, atol=1e-2)


def test_a_model_without_an_opinion_costs_no_second_product():
    weight = torch.zeros(1000, 16, dtype=torch.bfloat16)
    logits = OutputHead(weight, KERNELS, KERNELS.pack_linear).logits(random_rows(3, 16, seed=4))
    assert not logits.any()
