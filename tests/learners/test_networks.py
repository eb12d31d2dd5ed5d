from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from unilab.errors import ConfigError
from unilab.learners.activations import ACTIVATIONS
from unilab.learners.networks import MLP, DeterministicPolicy, GaussianActor
from unilab.learners.optimizer import FlatParameters
from unilab.learners.workspace import MLPWorkspace

SIZES = (5, 16, 7, 3)


def network(activation: str = "elu", gain: float = 1.0, dtype=torch.float64) -> MLP:
    return MLP(SIZES, activation, gain, torch.Generator().manual_seed(1), CPU, dtype)


def inputs(rows: int = 11, dtype=torch.float64) -> torch.Tensor:
    draw = torch.Generator().manual_seed(2)
    return 2 * torch.randn(rows, 5, generator=draw, dtype=dtype)


def test_weights_are_orthogonal_with_their_gains_and_biases_zero() -> None:
    mlp = network(gain=0.01)
    for i, (linear, gain) in enumerate(zip(mlp.linears, (2**0.5, 2**0.5, 0.01), strict=True)):
        weight = linear.weight.detach()
        small = weight.T @ weight if i == 0 else weight @ weight.T  # the side with fewer entries
        assert torch.allclose(small, gain**2 * torch.eye(len(small), dtype=torch.float64))
        assert not linear.bias.any()


def test_weights_follow_the_generator_and_not_the_dtype() -> None:
    for a, b in zip(network().parameters(), network(dtype=torch.float32).parameters(), strict=True):
        assert torch.equal(a.float(), b)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_workspace_gives_the_values_and_gradients_of_autograd(activation: str) -> None:
    mlp, x = network(activation), inputs()
    direction = torch.randn(11, 3, dtype=torch.float64)
    expected = mlp(x)
    grads = torch.autograd.grad((expected * direction).sum(), list(mlp.parameters()))
    FlatParameters(mlp.parameters()).grad.fill_(float("nan"))
    work = MLPWorkspace(mlp, 20, trains=True)  # roomier than the batch
    for buffer in (*work._pre, *work._post, *work._grad):
        buffer.fill_(float("nan"))
    for _ in range(2):  # the second time over used memory
        assert torch.allclose(work.forward(x), expected, atol=1e-12)
        work.backward(direction)
        for p, grad in zip(mlp.parameters(), grads, strict=True):
            assert torch.allclose(p.grad, grad, atol=1e-12)


def test_workspace_elu_is_within_one_rounding_of_torch() -> None:
    x = torch.cat([torch.linspace(-20, 5, 10001), torch.tensor([0.0, -1e-9, 200.0, -200.0])])
    y = torch.empty_like(x)
    ACTIVATIONS["elu"].forward(x, y)
    assert (y - torch.nn.functional.elu(x)).abs().max() <= 1.2e-7
    assert torch.equal(y[x >= 0], x[x >= 0])


def test_workspace_passes_nan_through() -> None:
    for name in ACTIVATIONS:
        x = torch.tensor([float("nan"), 1.0])
        y = torch.empty_like(x)
        ACTIVATIONS[name].forward(x, y)
        assert y.isnan().tolist() == [True, False], name


def test_flat_parameters_share_memory_with_the_modules() -> None:
    mlp = network()
    before = [p.detach().clone() for p in mlp.parameters()]
    flat = FlatParameters(mlp.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, mlp.parameters(), strict=True))
    flat.grad.zero_()
    mlp(inputs()).sum().backward()
    total = torch.sqrt(sum((p.grad**2).sum() for p in mlp.parameters()))
    assert torch.allclose(flat.grad_norm(), total)
    with torch.no_grad():
        flat.vector.zero_()
    assert not any(p.any() for p in mlp.parameters())


def test_noise_outside_its_bounds_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"init_std is 0\.001"):
        GaussianActor(network(), 3, 0.001)


def test_noise_is_brought_back_within_its_bounds() -> None:
    actor = GaussianActor(network(), 3, 1.0)
    with torch.no_grad():
        actor.std.copy_(torch.tensor([-3.0, 0.5, 1e9]))
    actor.clamp_std()
    assert actor.std.tolist() == pytest.approx([1e-2, 0.5, 1e2])


def test_exported_policy_is_a_copy() -> None:
    mlp, shift = network(), torch.zeros(5, dtype=torch.float64)
    policy = DeterministicPolicy(mlp, shift, shift + 1)
    before = policy(inputs()).clone()
    with torch.no_grad():
        mlp.linears[0].weight.zero_()
        shift.fill_(3)
    assert torch.equal(policy(inputs()), before)
    assert not any(p.requires_grad for p in policy.parameters())
