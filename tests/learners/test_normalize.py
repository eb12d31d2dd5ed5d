from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from unilab.learners.normalize import RunningNormalizer


def normalizer(dim: int = 3, enabled: bool = True, dtype=torch.float32) -> RunningNormalizer:
    return RunningNormalizer(dim, enabled=enabled, device=CPU, dtype=dtype)


def rows(count: int, seed: int, dtype=torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=draw, dtype=dtype) * torch.tensor([1.0, 5, 0.1]) + 3


def test_before_the_first_fold_mean_is_0_and_std_1() -> None:
    x = rows(4, 0)
    assert torch.allclose(normalizer()(x), x / 1.01)


def test_folds_equal_the_moments_of_all_rows_together() -> None:
    norm = normalizer()
    parts = [rows(50, 1), rows(7, 2) + 10, rows(200, 3) * 2]
    for part in parts:
        assert bool(norm.fold(part))
    together = torch.cat(parts).double()
    assert torch.allclose(norm.mean, together.mean(0), rtol=1e-6)
    assert torch.allclose(norm.var, together.var(0, correction=0), rtol=1e-6)
    assert norm.count.item() == 257
    expected = (parts[0].double() - together.mean(0)) / (together.std(0, correction=0) + 1e-2)
    assert torch.allclose(norm(parts[0]).double(), expected, atol=1e-5)


def test_a_large_offset_in_float32_keeps_the_variance_exact() -> None:
    norm = normalizer()
    for seed in range(5):
        norm.fold(rows(1000, seed) + 1000)
    together = torch.cat([rows(1000, seed) + 1000 for seed in range(5)]).double()
    assert torch.allclose(norm.var[:2], together.var(0, correction=0)[:2], rtol=1e-4)
    assert norm.mean.tolist() == pytest.approx(together.mean(0).tolist(), rel=1e-7)


def test_forward_never_writes_the_statistics() -> None:
    norm = normalizer()
    norm.fold(rows(20, 1))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    for seed in range(10):
        norm(rows(100, seed))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_refused_whole(bad: float) -> None:
    norm = normalizer()
    norm.fold(rows(20, 1))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    poisoned = rows(20, 2)
    poisoned[3, 1] = bad
    assert not bool(norm.fold(poisoned))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())
    assert torch.isfinite(norm(rows(5, 3))).all()


def test_disabled_is_the_identity_and_keeps_no_statistics() -> None:
    norm = normalizer(enabled=False)
    x = rows(20, 1)
    assert bool(norm.fold(x))
    assert torch.equal(norm(x), x)
    assert norm.count.item() == 0


def test_statistics_survive_a_save_bit_for_bit() -> None:
    norm, other = normalizer(), normalizer()
    norm.fold(rows(33, 1) + 100)
    other.load_state_dict(norm.state_dict())
    other.refresh()
    for name in ("mean", "var", "count", "shift", "inv_scale"):
        assert torch.equal(getattr(norm, name), getattr(other, name))
    norm.fold(rows(5, 2))
    other.fold(rows(5, 2))
    assert torch.equal(norm.var, other.var)


def test_writes_into_strided_memory() -> None:
    norm, table = normalizer(), torch.full((6, 8), float("nan"))
    norm.fold(rows(20, 1))
    x = rows(6, 2)
    norm(x, out=table[:, 2:5])
    assert torch.equal(table[:, 2:5], norm(x))
    assert torch.isnan(table[:, :2]).all()
    assert torch.isnan(table[:, 5:]).all()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_shorter_types_are_normalised_as_the_values_that_they_stand_for(
    enabled: bool, given: bool
) -> None:
    normalizer = RunningNormalizer(3, enabled=enabled, device=torch.device("cpu"))
    normalizer.fold(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1)
    short = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = torch.zeros(20, 3) if given else None
    found = normalizer(short, out)
    assert found.dtype == torch.float32
    assert out is None or found is out
    assert torch.equal(found, normalizer(short.float()))
