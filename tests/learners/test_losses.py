from __future__ import annotations

import math

import pytest
import torch

from unilab.learners.losses import gaussian_kl, learning_rate_factor, policy_loss, value_loss

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_policy_loss_takes_the_worse_branch_sample_by_sample() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5, 1.1 with advantages +, -, +, -, + and clip 0.2.
    ratio, advantage = tensor(1.5, 1.5, 0.5, 0.5, 1.1), tensor(1, -1, 1, -1, 2)
    out = policy_loss(ratio.log(), torch.zeros(5, dtype=F64), advantage, 0.2)
    assert out.loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)
    assert out.clip_fraction.item() == pytest.approx(4 / 5)
    expected = [0.0, 1.5 / 5, -0.5 / 5, 0.0, -2.2 / 5]
    assert out.grad_log_prob.tolist() == pytest.approx(expected)


def test_policy_gradient_equals_autograd() -> None:
    torch.manual_seed(0)
    old, advantage = torch.randn(500, dtype=F64), torch.randn(500, dtype=F64)
    log_prob = (old + 0.4 * torch.randn(500, dtype=F64)).requires_grad_()
    ratio = (log_prob - old).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    (grad,) = torch.autograd.grad(loss, log_prob)
    out = policy_loss(log_prob.detach(), old, advantage, 0.2)
    assert torch.allclose(out.loss, loss)
    assert torch.allclose(out.grad_log_prob, grad, atol=1e-15)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_gradient_equals_autograd(clip: float | None) -> None:
    torch.manual_seed(1)
    old, returns = torch.randn(500, dtype=F64), torch.randn(500, dtype=F64)
    value = (old + 0.3 * torch.randn(500, dtype=F64)).requires_grad_()
    square = (value - returns) ** 2
    if clip is not None:
        square = torch.maximum(square, (old + (value - old).clamp(-clip, clip) - returns) ** 2)
    (expected,) = torch.autograd.grad(square.mean(), value)
    loss, grad = value_loss(value.detach(), old, returns, clip)
    assert torch.allclose(loss, square.mean())
    assert torch.allclose(grad, expected, atol=1e-15)


def test_value_loss_by_hand() -> None:
    # old 0, clip 0.2, returns 1: value 0.5 counts as 0.2 (worse), value 3 as 3 (worse).
    loss, grad = value_loss(tensor(0.5, 3.0), tensor(0, 0), tensor(1, 1), 0.2)
    assert loss.item() == pytest.approx((0.8**2 + 2.0**2) / 2)
    assert grad.tolist() == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_reaches_loss_or_gradient(bad: float) -> None:
    zeros, poisoned = tensor(0, 0), tensor(0, bad)
    assert not math.isfinite(policy_loss(zeros, zeros, poisoned, 0.2).loss)
    loss, _ = value_loss(zeros, zeros, poisoned, 0.2)
    assert not math.isfinite(loss)


def test_kl_equals_torch_distributions() -> None:
    torch.manual_seed(2)
    mean, old_mean = torch.randn(40, 3, dtype=F64), torch.randn(40, 3, dtype=F64)
    std, old_std = tensor(0.5, 1, 2), tensor(0.7, 0.9, 3)
    old = torch.distributions.Normal(old_mean, old_std)
    new = torch.distributions.Normal(mean, std)
    expected = torch.distributions.kl_divergence(old, new).sum(-1).mean()
    assert torch.allclose(gaussian_kl(mean, std, old_mean, old_std), expected)
    assert gaussian_kl(mean, std, mean, std).item() == 0.0


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.021, 1 / 1.5),
        (0.02, 1.0),
        (0.005, 1.0),
        (0.0049, 1.5),
        (1e-8, 1.0),
        (0.0, 1.0),
        (math.nan, 1.0),
    ],
)
def test_learning_rate_factor(kl: float, factor: float) -> None:
    assert learning_rate_factor(tensor(kl)[0], 0.01).item() == pytest.approx(factor)
