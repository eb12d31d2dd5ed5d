from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learners.support import CPU
from unilab.learners.held_noise import HeldNoise


def held_for(series: Tensor) -> list[int]:
    """Lengths of the runs of equal values in (T,), without the first and the last."""
    changes = (series[1:] != series[:-1]).nonzero()[:, 0]
    return changes.diff().tolist()


def draw(hold: str, steps: int, envs: int) -> Tensor:
    noise = HeldNoise(2, 16, hold, CPU, torch.float32)
    generator = torch.Generator().manual_seed(1)
    return torch.stack([noise.next(envs, generator).clone() for _ in range(steps)])


@pytest.mark.parametrize("hold", ["shared", "per_env"])
def test_lengths_follow_the_zeta_law_and_values_the_normal_law(hold: str) -> None:
    values = draw(hold, 20_000, 3)  # (T, N, A)
    lengths = torch.tensor(held_for(values[:, 0, 0]))
    assert lengths.min() == 1
    assert lengths.max() == 16
    total = sum(k**-2 for k in range(1, 17))
    for k in (1, 2, 3, 6):
        share = (lengths == k).float().mean().item()
        assert share == pytest.approx(k**-2 / total, abs=0.015)
    fresh = values[1:][(values[1:] != values[:-1])[:, 0, 0]]
    assert fresh[:, 0].mean().abs() < 0.05
    assert fresh[:, 0].std().item() == pytest.approx(1, abs=0.05)


def test_shared_noise_changes_in_all_envs_at_once_and_is_not_the_same() -> None:
    values = draw("shared", 200, 5)
    changed = values[1:] != values[:-1]
    assert (changed.flatten(1).all(1) == changed.flatten(1).any(1)).all()
    assert len(values[0].unique()) == 10


def test_noise_of_its_own_changes_in_each_env_by_itself() -> None:
    values = draw("per_env", 200, 5)
    changed = (values[1:] != values[:-1])[:, :, 0]
    assert (changed.any(1) & ~changed.all(1)).any()
