from __future__ import annotations

import pytest
import torch

from tests.learners.support import CPU
from unilab.buffers.rollout import Rollout
from unilab.config.schema import PPOConfig
from unilab.learners.base import LearnerSpec
from unilab.learners.ppo import PPO
from unilab.learners.returns import gae

NAN = float("nan")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def test_no_episode_end_gives_the_numbers_worked_out_by_hand() -> None:
    # gamma 0.5, lambda 0.5. delta_2 = 3 + 0.5*4 - 2 = 3; delta_1 = 2 + 0.5*2 - 1 = 2;
    # delta_0 = 1 + 0.5*1 - 0 = 1.5. A_2 = 3; A_1 = 2 + 0.25*3 = 2.75; A_0 = 1.5 + 0.25*2.75.
    advantage, returns = gae(
        column(1, 2, 3),
        column(0, 1, 2, 4),
        flags(0, 0, 0),
        flags(0, 0, 0),
        column(NAN, NAN, NAN),
        0.5,
        0.5,
    )
    assert advantage.flatten().tolist() == [2.1875, 2.75, 3.0]
    assert returns.flatten().tolist() == [2.1875, 3.75, 5.0]


def test_termination_cuts_value_and_trace_and_ignores_the_next_episode() -> None:
    # Step 1 terminates: delta_1 = 2 - 1 = 1, whatever follows. A_0 = 1.5 + 0.25 * 1.
    advantage, _ = gae(
        column(1, 2, 3),
        column(0, 1, 1000, 4),
        flags(0, 1, 0),
        flags(0, 0, 0),
        column(NAN, NAN, NAN),
        0.5,
        0.5,
    )
    assert advantage.flatten().tolist() == [1.75, 1.0, 3 + 2 - 1000]


def test_truncation_bootstraps_from_the_final_value_and_cuts_the_trace() -> None:
    # Step 1 is truncated with V(final) = 8: delta_1 = 2 + 0.5*8 - 1 = 5. A_0 = 1.5 + 0.25 * 5.
    advantage, returns = gae(
        column(1, 2, 3),
        column(0, 1, 1000, 4),
        flags(0, 0, 0),
        flags(0, 1, 0),
        column(NAN, 8, NAN),
        0.5,
        0.5,
    )
    assert advantage.flatten().tolist() == [2.75, 5.0, 3 + 2 - 1000]
    assert returns[1].item() == 6.0


def test_terminated_wins_over_truncated() -> None:
    both, _ = gae(column(2), column(1, 9), flags(1), flags(1), column(8), 0.5, 0.5)
    assert both.item() == 1.0


def test_inputs_are_left_as_they_were() -> None:
    reward, value, final = column(1, 2), column(0, 1, 2), column(5, 6)
    before = [x.clone() for x in (reward, value, final)]
    gae(reward, value, flags(0, 1), flags(1, 0), final, 0.9, 0.8)
    for x, y in zip((reward, value, final), before, strict=True):
        assert torch.equal(x, y)


def counting_learner() -> PPO:
    """A learner with V(obs) = obs: one hidden relu unit with weight 1 on both sides."""
    config = PPOConfig(
        gamma=0.9,
        lam=0.0,
        critic_hidden=(1,),
        actor_hidden=(4,),
        activation="relu",
        normalize_obs=False,
        minibatches=1,
        epochs=1,
    )
    learner = PPO(config, LearnerSpec(1, 1, 1), CPU, seed=0)
    with torch.no_grad():
        for linear in learner.critic.linears:
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    return learner


@pytest.mark.parametrize("ends_by", ["truncated", "terminated"])
def test_target_at_a_time_out_uses_the_final_index(ends_by: str) -> None:
    # Observation = step index in the episode, reward 1, episodes of 10 steps, automatic reset.
    learner, rollout = counting_learner(), Rollout(12, 2, 1, 1, 1, CPU)
    ones = torch.ones(2, 1)
    rollout.set_first(0 * ones, 0 * ones, 0, 2)
    for t in range(12):
        done = torch.full((2,), t == 9)
        index = float(t + 1 if t < 9 else t - 9)
        out = learner.act(rollout.obs[t])
        rollout.append(
            t,
            0,
            2,
            action=out.action,
            mean=out.mean,
            log_prob=out.log_prob,
            reward=torch.ones(2).numpy(),
            terminated=(done if ends_by == "terminated" else done & False).numpy(),
            truncated=(done if ends_by == "truncated" else done & False).numpy(),
            final_critic_obs=((t + 1) * ones).numpy(),
            next_obs=(index * ones).numpy(),
            next_critic_obs=(index * ones).numpy(),
        )
    learner._prepare(rollout)
    target = learner._table.samples.returns.view(12, 2)
    assert target[8].tolist() == pytest.approx([1 + 0.9 * 9] * 2)
    last = 1 + 0.9 * 10 if ends_by == "truncated" else 1.0
    assert target[9].tolist() == pytest.approx([last] * 2)
    assert target[10].tolist() == pytest.approx([1 + 0.9 * 1] * 2)
