from __future__ import annotations

import pytest
import torch

from unilab.learners.squashed import MAX_LOG_STD, MIN_LOG_STD, bound_log_std, squash

F64 = torch.float64


def draws(rows: int, spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    mean, raw, noise = torch.randn(3, rows, 4, generator=draw, dtype=F64).unbind()
    return spread * mean, bound_log_std(raw), noise


def test_log_density_equals_the_change_of_variables() -> None:
    mean, log_std, noise = draws(500, 1.0)
    action, log_prob = squash(mean, log_std, noise)
    u = mean + log_std.exp() * noise
    normal = torch.distributions.Normal(mean, log_std.exp())
    expected = (normal.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)).sum(-1)
    assert torch.allclose(action, torch.tanh(u), atol=1e-15)
    assert torch.allclose(log_prob, expected, rtol=1e-6)


def test_the_density_integrates_to_one() -> None:
    # In one dimension, over a fine grid of u: dense where the policy is.
    mean, log_std = torch.full((1,), 0.3, dtype=F64), torch.full((1,), -0.5, dtype=F64)
    noise = torch.linspace(-8, 8, 40001, dtype=F64).unsqueeze(-1)
    action, log_prob = squash(mean, log_std, noise)
    area = torch.trapezoid(log_prob.exp(), action[:, 0])
    assert area.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_float32_agrees_with_float64_even_where_the_tanh_is_flat(spread: float) -> None:
    mean, log_std, noise = draws(500, spread)
    exact = squash(mean, log_std, noise).log_prob
    values = [x.float().requires_grad_() for x in (mean, log_std, noise)]
    log_prob = squash(*values).log_prob
    assert torch.isfinite(log_prob).all()
    assert torch.allclose(log_prob.double(), exact, rtol=2e-6, atol=2e-5)
    for grad in torch.autograd.grad(log_prob.sum(), values):
        assert torch.isfinite(grad).all()


def test_log_std_stays_within_its_bounds_and_starts_in_their_middle() -> None:
    raw = torch.tensor([-1e9, 0.0, 1e9])
    assert bound_log_std(raw).tolist() == [MIN_LOG_STD, 0.5 * (MIN_LOG_STD + MAX_LOG_STD), 0.0]
