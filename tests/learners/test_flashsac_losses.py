from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from unilab.learners.distributional import Support
from unilab.learners.flashsac_losses import gaussian_parameters, lowest_head

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def project(values: torch.Tensor, probs: torch.Tensor, v_max: float) -> torch.Tensor:
    """As FlashSAC does: its support is the same on both sides, and values may lie beyond it."""
    return Support(-v_max, v_max, probs.shape[1], CPU, probs.dtype).project(probs, values)


def test_log_std_covers_its_range_and_no_more() -> None:
    mean, log_std = gaussian_parameters(tensor(7, 8, -100, 100).unsqueeze(0))
    assert mean.tolist() == [[7, 8]]
    assert log_std.tolist() == [[-10, 2]]
    assert gaussian_parameters(tensor(0, 0).unsqueeze(0))[1].item() == -4


def test_projection_by_hand() -> None:
    # Atoms -1, 0, 1. -0.75 is a quarter of the way from -1 to 0; 5 is beyond the end.
    values = tensor(-0.75, 0.0, 5.0).unsqueeze(0)
    out = project(values, tensor(0.4, 0.5, 0.1).unsqueeze(0), 1.0)
    assert out.flatten().tolist() == pytest.approx([0.3, 0.6, 0.1])


def test_projection_keeps_mass_and_mean_and_leaves_atoms_in_place() -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(-5, 5, 101, dtype=F64)
    probs = torch.randn(50, 101, dtype=F64).softmax(-1)
    same = project(atoms.expand(50, -1), probs, 5.0)
    assert torch.allclose(same, probs, atol=1e-12)
    values = 0.5 * atoms + torch.randn(50, 1, dtype=F64).clamp(-2, 2)
    out = project(values, probs, 5.0)
    assert torch.allclose(out.sum(-1), torch.ones(50, dtype=F64))
    assert torch.allclose(out @ atoms, (values * probs).sum(-1), atol=1e-12)
    assert out.min() >= 0


def test_projection_in_float32_never_leaves_the_range() -> None:
    for count in (2, 51, 101, 251, 501):
        values = torch.linspace(-5, 5, count).expand(3, -1)
        out = project(values, torch.full((3, count), 1 / count), 5.0)
        assert torch.allclose(out.sum(-1), torch.ones(3), atol=1e-5)


def test_of_two_heads_the_lower_is_taken_row_by_row() -> None:
    probs = torch.arange(12, dtype=F64).view(2, 3, 2)
    mean = torch.stack([tensor(0, 5, 1), tensor(1, 4, 2)])
    assert lowest_head(probs, mean).tolist() == [[0, 1], [8, 9], [4, 5]]
