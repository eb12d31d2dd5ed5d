from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.learners.support import CPU
from unilab.learners.distributional import Support, cross_entropy

F64 = torch.float64


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def support(v_min: float = -1.0, v_max: float = 3.0, atoms: int = 5) -> Support:
    return Support(v_min, v_max, atoms, CPU, F64)  # atoms -1 0 1 2 3


def projected(reward: float, discount: float, probs: Tensor) -> list[float]:
    s = support()
    result: list[float] = s.project(probs.unsqueeze(0), s.shift(tensor(reward), tensor(discount)))[
        0
    ].tolist()
    return result


ONE_ON_2 = tensor(0, 0, 0, 1, 0)
UNIFORM = tensor(0.2, 0.2, 0.2, 0.2, 0.2)


@pytest.mark.parametrize(
    ("reward", "discount", "probs", "expected"),
    [
        (0.0, 1.0, UNIFORM, [0.2] * 5),  # every point on its own atom
        (1.0, 0.5, ONE_ON_2, [0, 0, 0, 1, 0]),  # 1 + 0.5 * 2 = 2: all mass on it
        (0.5, 0.5, ONE_ON_2, [0, 0, 0.5, 0.5, 0]),  # 1.5
        (0.25, 1.0, ONE_ON_2, [0, 0, 0, 0.75, 0.25]),  # 2.25
        (0.75, 0.0, UNIFORM, [0, 0.25, 0.75, 0, 0]),  # terminated: the reward alone
        (9.0, 0.9, UNIFORM, [0, 0, 0, 0, 1]),  # above the support
        (-9.0, 0.9, UNIFORM, [1, 0, 0, 0, 0]),  # below it
        (3.0, 0.0, UNIFORM, [0, 0, 0, 0, 1]),  # on the last atom
        (-1.0, 0.0, UNIFORM, [1, 0, 0, 0, 0]),  # on the first one
    ],
)
def test_projection_by_hand(reward, discount, probs, expected) -> None:
    assert projected(reward, discount, probs) == pytest.approx(expected, abs=1e-12)


def test_each_row_has_its_own_reward_and_discount() -> None:
    s = support()
    points = s.shift(tensor(0, 1), tensor(1, 0.5))
    result = s.project(torch.stack([ONE_ON_2, ONE_ON_2]), points)
    assert result.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 1, 0]]
    both = s.project(torch.stack([ONE_ON_2, UNIFORM]).expand(2, 2, 5), points)  # two critics
    assert torch.equal(both[0], both[1])


def plain_projection(probs: list[list[float]], points: list[list[float]], s: Support) -> Tensor:
    values, rows = s.values.tolist(), []
    for masses, places in zip(probs, points, strict=True):
        row = [0.0] * len(values)
        for mass, place in zip(masses, places, strict=True):
            for k, value in enumerate(values):  # the tent around each atom
                row[k] += mass * max(0.0, 1 - abs(place - value) / s.gap)
        rows.append(row)
    return torch.tensor(rows, dtype=F64)


@pytest.mark.parametrize(("v_min", "v_max", "atoms"), [(-20, 20, 101), (-1, 3, 5), (0, 1, 2)])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_projection_equals_the_sum_of_tents_and_keeps_mass_and_mean(
    v_min: float, v_max: float, atoms: int, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(0)
    s = Support(v_min, v_max, atoms, CPU, dtype)
    probs = torch.softmax(torch.randn(21, atoms, generator=draw, dtype=F64), -1).to(dtype)
    reward = (v_max * torch.randn(21, generator=draw, dtype=F64)).to(dtype)
    discount = 0.97 ** torch.randint(1, 9, (21,), generator=draw) * (torch.arange(21) % 7 > 0)
    points = s.shift(reward, discount.to(dtype))
    assert points.min() >= v_min
    assert points.max() <= v_max
    result = s.project(probs, points)
    exact = Support(v_min, v_max, atoms, CPU, F64)
    expected = plain_projection(probs.tolist(), points.tolist(), exact)
    # In float32 a place among 101 atoms is known to 128 / 2^24.
    tolerance = 1e-12 if dtype == F64 else 1e-5
    assert (result.double() - expected).abs().max() <= tolerance
    assert (result.sum(-1).double() - 1).abs().max() <= 1e-6
    means = (probs * points).sum(-1)
    assert torch.allclose(s.mean(result), means, rtol=1e-5, atol=1e-5 * v_max)


def test_an_undefined_reward_stays_in_its_row_and_is_seen() -> None:
    s = support()
    points = s.shift(tensor(math.nan, 0.0), tensor(0.9, 0.9))
    result = s.project(torch.stack([UNIFORM, UNIFORM]), points)
    assert not torch.isfinite(result[0]).all()
    assert torch.isfinite(result[1]).all()


def test_cross_entropy_and_its_gradient_by_hand() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
    logits.requires_grad_()
    target = torch.softmax(torch.arange(15, dtype=F64).view(3, 5) % 4, -1)
    weight = tensor(0.5, 0.0, 0.5)
    loss = cross_entropy(logits, target, weight)
    expected = 0.0
    for head in range(2):
        for row in range(3):
            exp = logits[head, row].detach().exp()
            log_probs = (exp / exp.sum()).log()
            expected -= weight[row].item() * (target[row] * log_probs).sum().item()
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (grad,) = torch.autograd.grad(loss, logits)
    by_hand = (torch.softmax(logits, -1) - target) * weight.view(1, 3, 1)
    assert torch.allclose(grad, by_hand, atol=1e-12)
    assert not grad[:, 1].any()
