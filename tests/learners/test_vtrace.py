"""V-trace by hand, by IMPALA's own formula, and on a chain whose values are known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from unilab.learners.returns import gae, vtrace

NAN = float("nan")
F64 = torch.float64


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64).unsqueeze(1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def random_rollout(dtype: torch.dtype = F64) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    steps, envs = 13, 40

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=F64).to(dtype)

    return {
        "reward": normal(steps, envs),
        "value": normal(steps + 1, envs),
        "terminated": torch.rand(steps, envs, generator=draw) < 0.1,
        "truncated": torch.rand(steps, envs, generator=draw) < 0.15,
        "final_value": normal(steps, envs),
        "log_ratio": 0.8 * normal(steps, envs),
    }


def by_loops(
    reward, value, terminated, truncated, final_value, log_ratio, gamma, lam, rho_bar, c_bar
) -> Tensor:
    """vs - V as the sum over later steps of IMPALA's equation 1, with lambda in every c."""
    steps, envs = reward.shape
    out = torch.zeros(steps, envs, dtype=F64)
    for env, start in itertools.product(range(envs), range(steps)):
        factor = 1.0
        for t in range(start, steps):
            ratio = math.exp(float(log_ratio[t, env]))
            if terminated[t, env]:
                following = 0.0
            elif truncated[t, env]:
                following = float(final_value[t, env])
            else:
                following = float(value[t + 1, env])
            delta = float(reward[t, env]) + gamma * following - float(value[t, env])
            out[start, env] += factor * min(rho_bar, ratio) * delta
            if terminated[t, env] or truncated[t, env]:
                break
            factor *= gamma * lam * min(c_bar, ratio)
    return out


@pytest.mark.parametrize(
    ("gamma", "lam", "rho_bar", "c_bar"),
    [(0.99, 0.95, 1.0, 1.0), (0.9, 1.0, 2.5, 1.0), (0.95, 0.5, 0.7, 0.4), (1.0, 0.0, 1.0, 1.0)],
)
def test_equals_the_sum_over_later_steps(gamma, lam, rho_bar, c_bar) -> None:
    rollout = random_rollout()
    assert (rollout["terminated"] & rollout["truncated"]).any()
    advantage, returns = vtrace(**rollout, gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar)
    expected = by_loops(**rollout, gamma=gamma, lam=lam, rho_bar=rho_bar, c_bar=c_bar)
    assert (advantage - expected).abs().max() <= 1e-12
    assert (returns - expected - rollout["value"][:-1]).abs().max() <= 1e-12


def test_float32_is_within_1e_6_of_float64_in_relative_terms() -> None:
    wide, narrow = random_rollout(), random_rollout(torch.float32)
    bounds = {"gamma": 0.99, "lam": 0.95, "rho_bar": 1.0, "c_bar": 1.0}
    expected, found = vtrace(**wide, **bounds)[0], vtrace(**narrow, **bounds)[0]
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("bound", [1.0, 3.0])
def test_on_policy_it_is_gae_bit_for_bit(dtype, bound) -> None:
    rollout = random_rollout(dtype)
    rollout["log_ratio"].zero_()
    ours = vtrace(**rollout, gamma=0.97, lam=0.93, rho_bar=bound, c_bar=bound)
    del rollout["log_ratio"]
    theirs = gae(**rollout, gamma=0.97, lam=0.93)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_numbers_worked_out_by_hand() -> None:
    # gamma 0.5, lambda 0.5, bounds 1. Ratios 0.5, 2 -> 1, 0.25. V' of step 1 is V(final) = 8.
    # delta: 0.5 (1 + 0.5*1 - 0) = 0.75; 1 (2 + 0.5*8 - 1) = 5; 0.25 (3 + 0.5*4 - 1000).
    advantage, returns = vtrace(
        column(1, 2, 3),
        column(0, 1, 1000, 4),
        flags(0, 0, 0),
        flags(0, 1, 0),
        column(NAN, 8, NAN),
        column(0.5, 2, 0.25).log(),
        0.5,
        0.5,
        1.0,
        1.0,
    )
    third = 0.25 * (3 + 2 - 1000)
    expected = [0.75 + 0.25 * 0.5 * 5, 5.0, third]
    assert advantage.flatten().tolist() == pytest.approx(expected, rel=1e-14)
    assert returns.flatten().tolist() == pytest.approx([expected[0], 6.0, 1000 + third])


# A chain of three states, left in order; in each, action 1 earns more than action 0.
REWARDS = ((0.0, 1.0), (-1.0, 2.0), (0.5, 4.0))
COLLECTING = (0.7, 0.4, 0.5)  # probability of action 1 in each state
LEARNING = (0.2, 0.9, 0.6)
CHAIN_GAMMA = 0.8


def chain_values(policy: tuple[float, ...]) -> list[float]:
    """V of the three states and of the end."""
    values = [0.0]
    for (low, high), p in zip(reversed(REWARDS), reversed(policy), strict=True):
        values.insert(0, (1 - p) * low + p * high + CHAIN_GAMMA * values[0])
    return values


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("rho_bar", [1e9, 1.0])
def test_the_fixed_point_on_a_chain_is_the_value_of_the_policy_it_should_be(lam, rho_bar) -> None:
    """Over all trajectories of the collecting policy, `vs` is V on average.

    Unbounded, V is that of the learning policy. With rho_bar it is that of the policy between the
    two whose probabilities are as min(rho_bar mu, pi): IMPALA, section 4.1.
    """
    between = []
    for mu, pi in zip(COLLECTING, LEARNING, strict=True):
        high, low = min(rho_bar * mu, pi), min(rho_bar * (1 - mu), 1 - pi)
        between.append(high / (high + low))
    values = chain_values(tuple(between))
    assert (between == pytest.approx(LEARNING)) == (rho_bar > 1)
    mean = torch.zeros(3, dtype=F64)
    for actions in itertools.product((0, 1), repeat=3):
        ps = [m if a else 1 - m for a, m in zip(actions, COLLECTING, strict=True)]
        qs = [m if a else 1 - m for a, m in zip(actions, LEARNING, strict=True)]
        _, returns = vtrace(
            column(*(REWARDS[s][a] for s, a in enumerate(actions))),
            column(*values),
            flags(0, 0, 1),
            flags(0, 0, 0),
            column(NAN, NAN, NAN),
            column(*(math.log(q / p) for p, q in zip(ps, qs, strict=True))),
            CHAIN_GAMMA,
            lam,
            rho_bar,
            min(rho_bar, 1.0),
        )
        mean += math.prod(ps) * returns[:, 0]
    assert mean.tolist() == pytest.approx(values[:3], abs=1e-6)


def test_inputs_are_left_as_they_were() -> None:
    rollout = random_rollout()
    before = {name: x.clone() for name, x in rollout.items()}
    vtrace(**rollout, gamma=0.9, lam=0.8, rho_bar=1.0, c_bar=1.0)
    assert all(torch.equal(before[name], x) for name, x in rollout.items())
