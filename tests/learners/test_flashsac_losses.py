from __future__ import annotations

import math

import pytest
import torch

from unilab.learners.flashsac_losses import (
    cross_entropy,
    gaussian_parameters,
    lowest_head,
    project_distribution,
    squash,
)

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_log_std_covers_its_range_and_no_more() -> None:
    mean, log_std = gaussian_parameters(tensor(7, 8, -100, 100).unsqueeze(0))
    assert mean.tolist() == [[7, 8]]
    assert log_std.tolist() == [[-10, 2]]
    assert gaussian_parameters(tensor(0, 0).unsqueeze(0))[1].item() == -4


def test_density_of_a_squashed_action_is_that_of_torch() -> None:
    torch.manual_seed(0)
    mean, log_std, noise = (torch.randn(200, 3, dtype=F64) for _ in range(3))
    action, log_prob = squash(mean, log_std, noise)
    base = torch.distributions.Normal(mean, log_std.exp())
    transform = torch.distributions.TanhTransform()
    expected = torch.distributions.TransformedDistribution(base, transform)
    inner = (mean.abs() + 4 * log_std.exp()).amax(1) < 8  # where 1 - tanh^2 is not rounded away
    assert inner.sum() > 20
    assert torch.allclose(
        log_prob[inner], expected.log_prob(action).sum(-1)[inner], rtol=1e-5, atol=1e-6
    )


def test_density_is_finite_and_right_where_the_action_is_at_its_end() -> None:
    action, log_prob = squash(tensor(40).unsqueeze(0), tensor(0).unsqueeze(0), tensor(0)[None])
    assert action.item() == 1
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 40)
    assert log_prob.item() == pytest.approx(expected)


def test_projection_by_hand() -> None:
    # Atoms -1, 0, 1. -0.75 is a quarter of the way from -1 to 0; 5 is beyond the end.
    values = tensor(-0.75, 0.0, 5.0).unsqueeze(0)
    out = project_distribution(values, tensor(0.4, 0.5, 0.1).unsqueeze(0), 1.0)
    assert out.flatten().tolist() == pytest.approx([0.3, 0.6, 0.1])


def test_projection_keeps_mass_and_mean_and_leaves_atoms_in_place() -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(-5, 5, 101, dtype=F64)
    probs = torch.randn(50, 101, dtype=F64).softmax(-1)
    same = project_distribution(atoms.expand(50, -1), probs, 5.0)
    assert torch.allclose(same, probs, atol=1e-12)
    values = 0.5 * atoms + torch.randn(50, 1, dtype=F64).clamp(-2, 2)
    out = project_distribution(values, probs, 5.0)
    assert torch.allclose(out.sum(-1), torch.ones(50, dtype=F64))
    assert torch.allclose(out @ atoms, (values * probs).sum(-1), atol=1e-12)
    assert out.min() >= 0


def test_projection_in_float32_never_leaves_the_range() -> None:
    for count in (2, 51, 101, 251, 501):
        values = torch.linspace(-5, 5, count).expand(3, -1)
        out = project_distribution(values, torch.full((3, count), 1 / count), 5.0)
        assert torch.allclose(out.sum(-1), torch.ones(3), atol=1e-5)


def test_of_two_heads_the_lower_is_taken_row_by_row() -> None:
    probs = torch.arange(12, dtype=F64).view(2, 3, 2)
    mean = torch.stack([tensor(0, 5, 1), tensor(1, 4, 2)])
    assert lowest_head(probs, mean).tolist() == [[0, 1], [8, 9], [4, 5]]


def test_cross_entropy_by_hand() -> None:
    logits = torch.stack([tensor(1, 3).log(), tensor(1, 1).log()]).view(2, 1, 2).repeat(1, 2, 1)
    target = torch.stack([tensor(1, 0), tensor(0.5, 0.5)])
    first = -0.75 * math.log(0.25) - 0.25 * (0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    expected = 0.5 * first + 0.5 * math.log(2)
    assert cross_entropy(logits, target, tensor(0.75, 0.25)).item() == pytest.approx(expected)
