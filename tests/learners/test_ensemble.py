from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from unilab.learners.ensemble import EnsembleNetwork, NetworkShape
from unilab.learners.precision import Precision

F64 = torch.float64
SHAPES = {
    "layer norm": NetworkShape("mlp", (16, 12), "silu", True),
    "plain": NetworkShape("mlp", (16, 12, 8), "relu", False),
    "residual": NetworkShape("residual", (12, 12), "relu", False),
}


def network(name: str, members: int = 2, seed: int = 1, dtype=F64) -> EnsembleNetwork:
    draw = torch.Generator().manual_seed(seed)
    like = torch.empty(0, device=CPU, dtype=dtype)
    return EnsembleNetwork(members, 5, 3, SHAPES[name], Precision("fp32", "cpu"), draw, like)


def inputs(dtype=F64) -> torch.Tensor:
    return 2 * torch.randn(11, 5, generator=torch.Generator().manual_seed(2), dtype=dtype)


@pytest.mark.parametrize("name", SHAPES)
def test_first_member_equals_its_copy_of_torchs_own_modules(name: str) -> None:
    net, x = network(name), inputs()
    with torch.no_grad():
        for p in net.parameters():  # gains and offsets that matter
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    assert net(x).shape == (2, 11, 3)
    plain = net.plain()
    assert all(type(m).__module__.startswith(("torch.", "unilab.")) for m in plain)
    assert torch.allclose(plain(x), net(x)[0], atol=1e-12)
    assert torch.allclose(net.plain(slice(2))(x), net(x)[0, :, :2], atol=1e-12)
    before = plain(x)
    with torch.no_grad():
        net.head.weight.zero_()
    assert torch.equal(plain(x), before)


@pytest.mark.parametrize("name", SHAPES)
def test_members_start_apart_and_learn_apart(name: str) -> None:
    net, x = network(name), inputs()
    first, second = net(x)
    assert not torch.allclose(first, second)
    grads = torch.autograd.grad(first.sum(), list(net.parameters()))
    for grad in grads:
        assert grad[0].any()
        assert not grad[1].any()


def test_weights_start_in_torchs_own_range_and_follow_the_generator() -> None:
    net, single = network("plain"), network("plain", dtype=torch.float32)
    for p in net.head.parameters():
        assert p.abs().max() <= 8**-0.5
    assert net.trunk[0].weight.abs().max() > 0.9 * 5**-0.5
    for a, b in zip(net.parameters(), single.parameters(), strict=True):
        assert torch.equal(a.float(), b)
    other = network("plain", seed=2)
    assert not torch.equal(net.head.weight, other.head.weight)
