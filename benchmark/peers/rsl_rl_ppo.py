"""Peer: rsl-rl-lib's PPO on the CPU, given the rollout of learner_data.py.

Runs in an interpreter with `rsl-rl-lib`; prints one JSON object as its last line.

    python rsl_rl_ppo.py --net 128-128 --num-envs 512 --threads 2
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from learner_data import (
    CLIP,
    ENTROPY_COEF,
    EPOCHS,
    GAMMA,
    INIT_STD,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MINIBATCHES,
    NETS,
    NUM_ACTIONS,
    NUM_STEPS,
    VALUE_COEF,
    Data,
    summarise,
)
from rsl_rl.algorithms import PPO
from tensordict import TensorDict


def make(net: list[int], num_envs: int, first: TensorDict, compile_mode: str | None) -> Any:
    """Build the algorithm as rsl-rl's runner does."""
    model = {"class_name": "MLPModel", "hidden_dims": net, "activation": "elu",
             "obs_normalization": True}  # fmt: skip
    config = {
        "num_steps_per_env": NUM_STEPS,
        "obs_groups": {"actor": ["actor"], "critic": ["critic"]},
        "multi_gpu": None,
        "torch_compile_mode": compile_mode,
        "actor": {
            **model,
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": INIT_STD},
        },
        "critic": dict(model),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": EPOCHS,
            "num_mini_batches": MINIBATCHES,
            "clip_param": CLIP,
            "gamma": GAMMA,
            "lam": LAM,
            "value_loss_coef": VALUE_COEF,
            "entropy_coef": ENTROPY_COEF,
            "learning_rate": LEARNING_RATE,
            "max_grad_norm": MAX_GRAD_NORM,
            "use_clipped_value_loss": True,
            "schedule": "fixed",
        },
    }
    env: Any = SimpleNamespace(num_envs=num_envs, num_actions=NUM_ACTIONS)
    algorithm = PPO.construct_algorithm(first, env, config, "cpu")
    algorithm.train_mode()
    return algorithm


def measure(net: list[int], num_envs: int, updates: int, compile_mode: str | None) -> Any:
    """Time acting and learning of some iterations, after two to warm up."""
    data = Data.draw(num_envs)
    observations = [
        TensorDict({"actor": actor, "critic": critic}, batch_size=[num_envs])
        for actor, critic in zip(data.obs, data.critic_obs, strict=True)
    ]
    algorithm = make(net, num_envs, observations[0], compile_mode)
    extras = {"time_outs": torch.zeros(num_envs)}
    collect_s, update_s = [], []
    for _ in range(updates + 2):
        begin = perf_counter()
        with torch.inference_mode():
            for t in range(NUM_STEPS):
                algorithm.act(observations[t])
                algorithm.process_env_step(
                    observations[t + 1], data.reward[t], data.terminated[t], extras
                )
            acted = perf_counter()
            algorithm.compute_returns(observations[NUM_STEPS])
        algorithm.update()
        collect_s.append(acted - begin)
        update_s.append(perf_counter() - acted)
    parameters = sum(p.numel() for m in (algorithm.actor, algorithm.critic) for p in m.parameters())
    return summarise(collect_s[2:], update_s[2:], parameters)


def main() -> None:
    """Measure and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", choices=NETS, default="128-128")
    parser.add_argument("--num-envs", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--compile", default=None, help="rsl-rl's torch_compile_mode")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    result = measure(NETS[given.net], given.num_envs, given.updates, given.compile)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
