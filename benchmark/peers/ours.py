"""Our side of each comparison: the real pipeline and collect loop, and the real PPO.

Runs where unilab is installed; prints one JSON object as its last line.

    python ours.py collect --task g1_walk --num-envs 128
    python ours.py ppo --net 128-128 --num-envs 512
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

from bundle import ACTION_ROWS, draw_actions

from unilab.config import load_config
from unilab.config.schema import PPOConfig
from unilab.runtime.threads import make_plan, prepare_environment


def collect_rate(
    task: str, overrides: list[str], num_envs: int, warmup: int, seconds: float
) -> dict[str, Any]:
    """Collect rollouts for some seconds, with the actions that the peers get too.

    More is done here than in a peer's `step`: the rollout is written as well.
    """
    config = load_config(task, [*overrides, f"physics.num_envs={num_envs}"]).config
    prepare_environment(config.runtime)
    import numpy as np
    import torch

    from unilab.buffers.rollout import Rollout
    from unilab.learners.base import ActOutput
    from unilab.runners.build import compile_kernels, make_pipeline
    from unilab.runners.on_policy import collect, set_first
    from unilab.tasks.base import build_task

    plan = make_plan(config.runtime, num_envs)
    built = build_task(config)
    pipeline = make_pipeline(built, plan, seed=1)
    compile_kernels(pipeline)
    actions = torch.from_numpy(draw_actions(num_envs, pipeline.num_actions))
    log_prob, calls = torch.zeros(num_envs), 0
    groups = pipeline.groups

    def act(obs: torch.Tensor) -> ActOutput:
        nonlocal calls
        step, group = divmod(calls, len(groups))
        rows = actions[step % ACTION_ROWS, groups[group]]
        calls += 1
        return ActOutput(rows, rows, log_prob[: len(obs)])

    kernel = built.kernel
    rollout = Rollout(10, num_envs, kernel.num_obs, kernel.num_critic_obs, pipeline.num_actions,
                      torch.device("cpu"))  # fmt: skip
    pipeline.reset(random_start=False)
    set_first(pipeline, rollout)
    for _ in range(-(-warmup // rollout.num_steps)):
        collect(pipeline, act, rollout)
        rollout.carry_over()
    steps = ended = 0
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        collect(pipeline, act, rollout)
        ended += int(np.count_nonzero(rollout.terminated | rollout.truncated))
        rollout.carry_over()
        steps += rollout.num_steps
    elapsed = perf_counter() - begin
    pipeline.close()
    count = steps * num_envs
    return {
        "steps_per_s": count / elapsed,
        "ended_share": ended / count,
        "threads": plan.describe(),
    }


def ppo_times(net_name: str, num_envs: int, threads: int, updates: int) -> dict[str, Any]:
    """Time acting and learning of some iterations, after two to warm up."""
    prepare_environment(load_config("cartpole").config.runtime)
    import torch
    from learner_data import (
        CLIP,
        CRITIC_OBS_DIM,
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
        OBS_DIM,
        VALUE_COEF,
        Data,
        summarise,
    )

    from unilab.buffers.rollout import Rollout
    from unilab.learners.base import LearnerSpec
    from unilab.learners.ppo import PPO

    torch.set_num_threads(threads)
    net = tuple(NETS[net_name])
    config = PPOConfig(
        num_steps=NUM_STEPS, epochs=EPOCHS, minibatches=MINIBATCHES, gamma=GAMMA, lam=LAM,
        clip=CLIP, value_coef=VALUE_COEF, entropy_coef=ENTROPY_COEF, learning_rate=LEARNING_RATE,
        schedule="fixed", max_grad_norm=MAX_GRAD_NORM, init_std=INIT_STD, actor_hidden=net,
        critic_hidden=net, symmetry="none",
    )  # fmt: skip
    device = torch.device("cpu")
    spec = LearnerSpec(OBS_DIM, CRITIC_OBS_DIM, NUM_ACTIONS)
    learner = PPO(config, spec, device, seed=1)
    rollout = Rollout(NUM_STEPS, num_envs, OBS_DIM, CRITIC_OBS_DIM, NUM_ACTIONS, device)
    data = Data.draw(num_envs)
    critic_obs, next_obs = data.critic_obs.numpy(), data.obs.numpy()
    reward, terminated = data.reward.numpy(), data.terminated.numpy()
    truncated = torch.zeros(num_envs, dtype=torch.bool).numpy()
    rollout.set_first(data.obs[0], data.critic_obs[0], 0, num_envs)
    collect_s, update_s = [], []
    for _ in range(updates + 2):
        begin = perf_counter()
        for t in range(NUM_STEPS):
            output = learner.act(data.obs[t])
            rollout.append(
                t,
                0,
                num_envs,
                **output._asdict(),
                reward=reward[t],
                terminated=terminated[t],
                truncated=truncated,
                final_critic_obs=critic_obs[t],
                next_obs=next_obs[t + 1],
                next_critic_obs=critic_obs[t + 1],
            )
        acted = perf_counter()
        learner.update(rollout)
        rollout.carry_over()
        collect_s.append(acted - begin)
        update_s.append(perf_counter() - acted)
        rollout.set_first(data.obs[0], data.critic_obs[0], 0, num_envs)
    modules = (learner.actor, learner.critic)
    parameters = sum(p.numel() for module in modules for p in module.parameters())
    return summarise(collect_s[2:], update_s[2:], parameters)


def main() -> None:
    """Measure one thing and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("collect", "ppo"))
    parser.add_argument("--task", default="g1_walk")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=60, help="control steps")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--net", default="128-128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_intermixed_args()
    if given.what == "collect":
        result = collect_rate(
            given.task, given.overrides, given.num_envs, given.warmup, given.seconds
        )
    else:
        result = ppo_times(given.net, given.num_envs, given.threads, given.updates)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
