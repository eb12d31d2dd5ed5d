"""Builds the parts of a run from its config: physics, pipeline, learner."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, cast

import numpy as np
import psutil
import torch
from numba.core.errors import NumbaError

from unilab.buffers.replay import Replay
from unilab.buffers.replay_spec import ReplaySpec
from unilab.config import RunConfig
from unilab.config.off_policy import ReplayConfig
from unilab.config.ppo import PPOConfig
from unilab.errors import ConfigError
from unilab.learners.appo import APPO
from unilab.learners.base import Learner, LearnerSpec, Mirror, Symmetry
from unilab.learners.flashsac import FlashSAC
from unilab.learners.off_policy import OffPolicyLearner
from unilab.learners.ppo import PPO
from unilab.learners.sac import SAC
from unilab.learners.td3 import TD3
from unilab.physics.base import Physics
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.physics.randomize import make_variants
from unilab.runners.backends import choose_backend, choose_device, make_warp
from unilab.runtime.pipeline import Pipeline, cut_groups
from unilab.runtime.thread_names import KERNEL_POOL, MUJOCO_POOL, children_named
from unilab.runtime.threads import ThreadPlan
from unilab.runtime.timers import Timers
from unilab.tasks.base import BuiltTask
from unilab_kernels.spec import ObservationSlice

LEARNERS = {"ppo": PPO, "appo": APPO, "sac": SAC, "td3": TD3, "flashsac": FlashSAC}


def make_pipeline(
    built: BuiltTask,
    plan: ThreadPlan,
    *,
    seed: int,
    num_envs: int | None = None,
    timers: Timers | None = None,
) -> Pipeline:
    """Build physics and pipeline.

    Args:
      built: the task.
      plan: threads, shards, groups.
      seed: of everything the envs draw.
      num_envs: N; None takes the config's.
      timers: where times go.
    """
    count = built.config.physics.num_envs if num_envs is None else num_envs
    variants = make_variants(built.robot.model, built.config.randomization, seed=seed)
    device = choose_device(built.config.device)
    if choose_backend(built.config, device) == "mujoco_warp":
        with children_named(MUJOCO_POOL):
            physics: Physics = make_warp(
                built,
                cut_groups(count, plan.groups),
                device,
                count,
                overlap=plan.overlap,
                variants=variants,
                reset_threads=plan.kernel if device.type == "cuda" else 1,
            )
    else:
        with children_named(MUJOCO_POOL):
            physics = MujocoCpu(
                built.robot.model,
                num_envs=count,
                groups=cut_groups(count, plan.groups),
                substeps=built.config.physics.substeps,
                threads=plan.physics,
                overlap=plan.overlap,
                variants=variants,
            )
    return Pipeline(built, physics, plan, seed=seed, timers=timers, device=device)


def compile_kernels(pipeline: Pipeline) -> None:
    """Compile the task's kernels, or load them from the disk cache, before anything is stepped.

    Raises:
      ConfigError: a term of the task is not what Numba can compile.
    """
    try:
        with children_named(KERNEL_POOL):
            pipeline.compile()
    except NumbaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = " | ".join([*lines[1:3], *lines[-4:]])[:800]
        built = pipeline.built
        raise ConfigError(
            f"task '{built.config.task}': its kernel does not compile: {cause}\n"
            "  a term does what Numba cannot, or a parameter is a list where a number is wanted or "
            f"the reverse; the source: {built.kernel.write()}"
        ) from error


def check_memory(built: BuiltTask) -> None:
    """Refuse sizes that cannot fit in memory, before anything is allocated.

    Counted is what grows with a size of the config: state rows, the kernels' arrays, the rollout
    and what the learner copies of it, weights with gradient and moments.

    Raises:
      ConfigError: more is needed than the machine has free.
    """
    config, kernel, model = built.config, built.kernel, built.robot.model
    learner, substeps = learner_settings(config), config.physics.substeps
    where = f"learners.{config.learner}"
    obs, critic_obs, actions = kernel.num_obs, kernel.num_critic_obs, int(model.nu)
    state = 1 + int(model.nq) + int(model.nv) + int(model.na)
    env = 8 * ((substeps + 1) * state + substeps * (int(model.nsensordata) + actions))
    env += 8 * (int(model.nq) + 2 * int(model.nv)) + 4 * (
        2 * (obs + critic_obs) + kernel.num_fields
    )
    # A replay buffer says itself what it takes.
    off_policy = isinstance(learner, ReplayConfig)
    sample = 0 if off_policy else 4 * 2 * (obs + critic_obs + 2 * actions + 4)
    ends = ((obs, actions), (critic_obs, 1))
    weights = sum(
        a * b
        for (first, last), hidden in zip(ends, learner.layers.values(), strict=True)
        for a, b in pairwise((first, *hidden, last))
    )
    needed = {
        f"physics.num_envs={config.physics.num_envs} with {where}.num_steps={learner.num_steps}": (
            config.physics.num_envs * (env + learner.num_steps * sample)
        ),
        f"evaluation.episodes={config.evaluation.episodes}": config.evaluation.episodes * env,
        f"{where}.{' and '.join(learner.layers)}": 16 * weights,
        "randomization.startup_variants * reset_variants": (
            math.prod(config.randomization.num_variants) * int(model.nbuffer)
        ),
    }
    free = psutil.virtual_memory().available
    for what, size in needed.items():
        if size > free:
            raise ConfigError(
                f"{what} needs about {size / 2**30:,.1f} GiB of memory, {free / 2**30:.1f} GiB are "
                "free; lower it"
            )


def learner_settings(config: RunConfig) -> PPOConfig | ReplayConfig:
    """Return the block of the learner that the config names."""
    block: PPOConfig | ReplayConfig = getattr(config.learners, config.learner)
    return block


def make_learner(
    built: BuiltTask, config: RunConfig, device: torch.device, seed: int
) -> Learner | OffPolicyLearner:
    """Build the learner that the config names."""
    kernel, settings = built.kernel, learner_settings(config)
    spec = LearnerSpec(
        obs_dim=kernel.num_obs,
        critic_obs_dim=kernel.num_critic_obs,
        action_dim=len(built.model.ctrl_offset),
        symmetry=make_symmetry(built),
        action_limit=action_limits(built),
        num_envs=config.physics.num_envs,
    )
    build: Any = LEARNERS[config.learner]
    learner: Learner | OffPolicyLearner = build(settings, spec, device, seed)
    return learner


def make_on_policy_learner(
    built: BuiltTask, config: RunConfig, device: torch.device, seed: int
) -> Learner:
    """Build the config's learner for a tool that runs rollouts.

    Raises:
      ConfigError: the config's learner learns from a replay buffer.
    """
    if isinstance(learner_settings(config), ReplayConfig):
        raise ConfigError(
            f"learner={config.learner}: this command measures rollouts; leave it out, or use "
            "learner=ppo"
        )
    return cast(Learner, make_learner(built, config, device, seed))


def make_replay(built: BuiltTask, num_envs: int, device: torch.device) -> Replay:
    """Build the replay buffer that the config's learner asks for.

    Raises:
      ConfigError: it does not fit in memory, or cannot hold a batch.
    """
    config, kernel = built.config, built.kernel
    settings = learner_settings(config)
    assert isinstance(settings, ReplayConfig)
    spec = ReplaySpec(
        num_envs=num_envs,
        capacity=settings.replay_capacity,
        obs_dim=kernel.num_obs,
        critic_obs_dim=kernel.num_critic_obs,
        action_dim=len(built.model.ctrl_offset),
        batch_size=settings.batch_size,
        updates=settings.updates_per_step,
        n_steps=settings.n_steps,
        gamma=settings.gamma,
        dtype=settings.replay_dtype,
        max_episode_steps=built.max_steps,
        learner=config.learner,
    )
    return Replay(spec, device)


def action_limits(built: BuiltTask) -> tuple[float, ...] | None:
    """Return the largest useful |action| of each joint, (A,); None where a joint has no limit.

    For a position servo it reaches the farther end of the joint's range from its offset; for any
    other actuator the farther end of its ctrlrange. Beyond `actions.clip` nothing changes.
    Source: FastSAC scales its actions by the distance from the default pose to the joint's limits.
    """
    robot, model = built.robot, built.model
    rows = robot.actuator_table()
    joints = robot.joint_ranges(robot.joint_names)
    ends = np.array([
        joint if row.kind == "position" else row.ctrl_range
        for row, joint in zip(rows, joints, strict=True)
    ])  # fmt: skip
    reach = np.abs(ends - model.ctrl_offset[:, None]).max(axis=1) / built.ctrl_scale
    if not (np.isfinite(reach).all() and (reach > 0).all()):
        return None
    return tuple(np.minimum(reach, built.config.actions.clip).tolist())


def make_symmetry(built: BuiltTask) -> Symmetry | None:
    """Put the mirrors of the task's terms together; None where the task declares none.

    Raises:
      ConfigError: the mirror of the action or of an observation term in use has another size, or
        is missing where the learner's `symmetry` asks for it.
    """
    if not built.model.mirrors:
        return None
    kernel, action_dim = built.kernel, len(built.model.ctrl_offset)
    obs = _join_mirrors(built, kernel.actor_layout)
    critic_obs = _join_mirrors(built, kernel.critic_layout)
    action = _join_mirrors(built, (ObservationSlice("action", 0, action_dim, 0.0, 1.0),))
    if obs is None or critic_obs is None or action is None:
        return None
    return Symmetry(obs, critic_obs, action)


def _join_mirrors(built: BuiltTask, layout: tuple[ObservationSlice, ...]) -> Mirror | None:
    """Join the mirrors of the terms in a layout; None where one is missing and none is needed."""
    perms, signs = [], []
    for part in layout:
        size, mirror = part.stop - part.start, built.model.mirrors.get(part.name)
        what = "the action" if part.name == "action" else f"the observation term '{part.name}'"
        if mirror is None:
            if learner_settings(built.config).symmetry == "none":
                return None
            key = f"learners.{built.config.learner}.symmetry"
            raise ConfigError(
                f"{key} is on, but the task declares no mirror for {what} ({size} numbers); "
                f"declare '{part.name}' in the task's mirrors, or set {key}=none"
            )
        if mirror.perm.shape != (size,) or mirror.sign.shape != (size,):
            raise ConfigError(
                f"task '{built.config.task}': mirrors: '{part.name}' has {mirror.perm.size} "
                f"indices and {mirror.sign.size} signs; {what} has {size} numbers, and needs one "
                "of each for every number"
            )
        perms.append(mirror.perm + part.start)
        signs.append(mirror.sign)
    return Mirror(
        torch.from_numpy(np.concatenate(perms)).long(),
        torch.from_numpy(np.concatenate(signs)).float(),
    )
