from __future__ import annotations

import math

import pytest
import torch

from tests.learners.support import CPU
from unilab.learners.reward_scale import RewardScale

F64 = torch.float64


def test_scale_is_that_of_all_discounted_returns_so_far() -> None:
    scale = RewardScale(0.9, 5.0, CPU, F64)
    assert scale.inverse.item() == 1
    draw = torch.Generator().manual_seed(0)
    returns, seen, peak = [0.0] * 4, [], 0.0
    for _ in range(50):
        reward = 3 + torch.randn(4, generator=draw, dtype=F64)
        ended = torch.rand(4, generator=draw) < 0.1
        scale.observe(reward, ended)
        for env in range(4):
            returns[env] = float(reward[env]) + 0.9 * returns[env]
            seen.append(returns[env])
            peak = max(peak, abs(returns[env]))
            if ended[env]:
                returns[env] = 0.0
        spread = torch.tensor(seen, dtype=F64).std(correction=0).item()
        assert 1 / scale.inverse.item() == pytest.approx(max(spread, peak / 5), rel=1e-9)


def test_a_constant_reward_is_scaled_by_its_peak() -> None:
    scale = RewardScale(0.0, 5.0, CPU, F64)
    scale.observe(torch.full((3,), 10.0, dtype=F64), torch.zeros(3, dtype=torch.bool))
    assert scale.inverse.item() == pytest.approx(5 / 10)


def test_no_reward_is_left_alone_and_a_bad_one_left_out() -> None:
    scale = RewardScale(0.9, 5.0, CPU, F64)
    scale.observe(torch.zeros(3, dtype=F64), torch.zeros(3, dtype=torch.bool))
    assert math.isfinite(scale.inverse.item())
    scale.observe(torch.tensor([1.0, math.nan, math.inf], dtype=F64), torch.zeros(3).bool())
    assert math.isfinite(scale.inverse.item())
    assert scale.returns.tolist() == [1, 0, 0]
