"""Trains any learner on a toy task, with settings that take seconds.

The loops are those of the runners in small: a rollout that is learnt from and forgotten, with APPO
always two updates late; or every transition so far, sampled evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.learners.toys import CartPole, Chain, Toy, chain_action, steps_survived
from unilab.buffers.rollout import Rollout
from unilab.config.learners import LearnersConfig
from unilab.learners.appo import APPO
from unilab.learners.base import ActOutput, LearnerSpec
from unilab.learners.flashsac import FlashSAC
from unilab.learners.off_policy import Batch
from unilab.learners.ppo import PPO
from unilab.learners.sac import SAC
from unilab.learners.td3 import TD3

CPU = torch.device("cpu")
LEARNERS = {"ppo": PPO, "appo": APPO, "sac": SAC, "td3": TD3, "flashsac": FlashSAC}
ON_POLICY, LAG = ("ppo", "appo"), 2
CHAIN_GAMMA, CHAIN_TOLERANCE = 0.9, 0.15
CART_POLE_GAMMA, SURVIVED = 0.97, 0.95  # of CartPole.limit

_ROLLOUTS = {
    "num_steps": 16, "actor_hidden": [32, 32], "critic_hidden": [32, 32], "entropy_coef": 0.0,
    "init_std": 0.5,
}  # fmt: skip
_TWINS = {
    "batch_size": 128, "updates_per_step": 4, "actor_every": 2, "actor_hidden": [32, 32],
    "critic_hidden": [32, 32], "learning_rate": 3e-3, "atoms": 41, "warmup_steps": 20,
}  # fmt: skip
_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": _ROLLOUTS,
    "appo": _ROLLOUTS | {"epochs": 5},
    "sac": _TWINS,
    "td3": _TWINS,
    "flashsac": {
        "batch_size": 128, "actor_width": 32, "critic_width": 32, "actor_blocks": 1,
        "critic_blocks": 1, "expansion": 2, "learning_rate": 3e-3, "final_learning_rate": 1e-3,
        "updates_per_step": 4, "decay_updates": 1200, "tau": 0.1, "atoms": 41,
        "warmup_steps": 20, "target_std": 0.05,
    },
}  # fmt: skip
# Rollouts, or control steps, on the chain and on the cart-pole.
_LENGTHS = {
    "ppo": (40, 90), "appo": (40, 90), "sac": (250, 400), "td3": (250, 400), "flashsac": (180, 280),
}  # fmt: skip


def on_chain(name: str, seed: int, *, truncates: bool) -> float:
    """Train a learner on the chain. Returns the action it settled on."""
    span = {} if name in (*ON_POLICY, "flashsac") else {"v_min": -5.0, "v_max": 10.0}
    learner = _make(name, (1, 1), seed, gamma=CHAIN_GAMMA, **span)
    on_policy = name in ON_POLICY
    env = Chain(128 if on_policy else 32, seed + 1, truncates)
    _train(name, env, learner, _LENGTHS[name][0], seed)
    return chain_action(learner)


def on_cart_pole(name: str, seed: int) -> tuple[float, float]:
    """Train a learner on the cart-pole. Returns the steps it survived before and after."""
    span = {} if name in (*ON_POLICY, "flashsac") else {"v_min": 0.0, "v_max": 35.0}
    learner = _make(name, (4, 1), seed, gamma=CART_POLE_GAMMA, **span)
    before = steps_survived(learner)
    on_policy = name in ON_POLICY
    env = CartPole(128 if on_policy else 32, seed + 1)
    _train(name, env, learner, _LENGTHS[name][1], seed)
    return before, steps_survived(learner)


def _make(name: str, sizes: tuple[int, int], seed: int, **changes: Any) -> Any:
    settings = LearnersConfig.model_validate({name: _SETTINGS[name] | changes})
    spec = LearnerSpec(sizes[0], sizes[0], sizes[1])
    build: Any = LEARNERS[name]
    return build(getattr(settings, name), spec, CPU, seed)


def _train(name: str, env: Toy, learner: Any, length: int, seed: int) -> None:
    """`length` rollouts, or control steps."""
    if name == "ppo":
        _learn_from_rollouts(env, learner, length, [learner.act])
    elif name == "appo":
        policies = [learner.snapshot() for _ in range(LAG + 1)]
        draw = learner.acting_generator
        acts = [lambda obs, policy=policy: policy.act(obs, True, draw) for policy in policies]
        _learn_from_rollouts(env, learner, length, acts, policies)
    else:
        _learn_from_replay(env, learner, length, seed)


def _learn_from_rollouts(
    env: Toy,
    learner: Any,
    iterations: int,
    acts: list[Callable[[Tensor], ActOutput]],
    policies: list[Any] | None = None,
) -> None:
    """Learn from rollouts of the policy of `len(acts) - 1` updates before."""
    steps, dim, slots = learner.config.num_steps, env.obs.shape[1], len(acts)
    rollouts = [Rollout(steps, env.num_envs, dim, dim, 1, CPU) for _ in range(slots)]
    rollouts[-1].set_first(env.obs, env.obs, 0, env.num_envs)
    rollouts[-1].obs[-1], rollouts[-1].critic_obs[-1] = env.obs, env.obs
    for i in range(iterations + slots - 1):
        rollout = rollouts[i % slots]
        rollout.carry_over(rollouts[(i - 1) % slots])
        for t in range(steps):
            out = acts[i % slots](rollout.obs[t])
            found = env.step(out.action)
            rollout.append(
                t, 0, env.num_envs, action=out.action, mean=out.mean, log_prob=out.log_prob,
                reward=found.reward.numpy(), terminated=found.terminated.numpy(),
                truncated=found.truncated.numpy(), final_critic_obs=found.final.numpy(),
                next_obs=env.obs.numpy(), next_critic_obs=env.obs.numpy(),
            )  # fmt: skip
        if i >= slots - 1:
            learner.update(rollouts[(i - slots + 1) % slots])
        if policies is not None:
            learner.publish(policies[i % slots])


def _learn_from_replay(env: Toy, learner: Any, steps: int, seed: int) -> None:
    draw, warm_up = torch.Generator().manual_seed(seed), learner.config.warmup_steps
    widths = [env.obs.shape[1], 1, 1, 1, env.obs.shape[1]]  # obs, action, reward, discount, next
    table = torch.zeros(steps * env.num_envs, sum(widths))
    for step in range(steps):
        obs, warm = env.obs.clone(), step >= warm_up
        action = learner.act(obs).action if warm else learner.random_actions(env.num_envs)
        found = env.step(action)
        learner.observe(obs, obs)
        learner.observe_rewards(found.reward, found.terminated | found.truncated)
        discount = learner.config.gamma * (~found.terminated).float()
        columns = (obs, action, found.reward[:, None], discount[:, None], found.final)
        start, stop = step * env.num_envs, (step + 1) * env.num_envs
        table[start:stop] = torch.cat(columns, 1)
        if warm:
            rows = learner.updates_per_step * learner.batch_size
            ids = torch.randint(stop, (rows,), generator=draw)
            before, action, reward, discount, after = table[ids].split(widths, 1)
            ones = torch.ones(rows)
            metrics = learner.cycle(
                Batch(before, before, action, reward[:, 0], discount[:, 0], after, after, ones)
            )
            assert metrics["learner/non_finite_updates"].item() == 0
