"""Two ways of stepping the same states: how far apart do they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import torch

from unilab.physics.base import F64, Physics
from unilab.physics.contact_sizes import ContactSizes, measure_contacts, random_pose
from unilab.physics.model import compile_robot
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.physics.variants import Variants
from unilab.runners.backends import make_warp
from unilab.runners.build import make_pipeline
from unilab.runtime.threads import ThreadPlan
from unilab.tasks.base import BuiltTask

ALONE = ThreadPlan(1, 1, 1, 1, 1, False, 1)  # one group, one thread
FALL_S, LIFT_M = 1.0, 0.3
RESET_LIMIT, FALLEN_MEDIAN, FALLEN_SHARE = 1e-3, 1e-4, 0.7  # relative error of positions

MakePhysics = Callable[[BuiltTask, int], Physics]


def on_cpu(built: BuiltTask, num_envs: int, variants: Variants | None = None) -> Physics:
    """Return MuJoCo C on one thread."""
    return MujocoCpu(
        built.robot.model,
        num_envs=num_envs,
        groups=(slice(0, num_envs),),
        substeps=built.config.physics.substeps,
        threads=1,
        overlap=False,
        variants=variants,
    )


def on_warp(device: torch.device, **options: Any) -> MakePhysics:
    """Return what makes mujoco-warp on a device; options as in `MujocoWarp`."""

    def make(built: BuiltTask, num_envs: int) -> Physics:
        return make_warp(built, (slice(0, num_envs),), device, num_envs, **options)

    return make


@contextmanager
def opened(made: Physics) -> Iterator[Physics]:
    """Close physics at the end."""
    try:
        yield made
    finally:
        made.close()


def step(made: Physics, ctrl: F64) -> None:
    """Take one control step of every group with the same ctrl (N, A) in all substeps."""
    made.ctrl[:] = ctrl[:, None]
    tickets = [made.submit(group, made.ctrl[envs]) for group, envs in enumerate(made.groups)]
    for ticket in tickets:
        made.wait(ticket)


def waves(built: BuiltTask, num_envs: int, k: int) -> F64:
    """Return ctrl (N, A): slow waves about the offset, other ones for every env and joint."""
    phase = np.arange(num_envs)[:, None] + np.arange(built.robot.model.nu)
    wave: F64 = built.model.ctrl_offset + 0.3 * built.ctrl_scale * np.sin(0.3 * k + phase)
    return wave


def end_positions(make: MakePhysics, built: BuiltTask, qpos: F64, qvel: F64, num_steps: int) -> F64:
    """Return qpos (N, nq) after some control steps from given states."""
    with opened(make(built, len(qpos))) as made:
        made.write_state(np.arange(len(qpos), dtype=np.int32), qpos, qvel)
        for k in range(num_steps):
            step(made, waves(built, len(qpos), k))
        return np.array(made.state[:, -1, 1 : 1 + built.robot.model.nq], np.float64)


def relative_errors(found: F64, wanted: F64) -> F64:
    """Return |found - wanted| / |wanted| of each row, (N,); infinite where one is not finite."""
    error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    return np.where(np.isfinite(error), error, np.inf)


def reset_states(built: BuiltTask, count: int) -> tuple[F64, F64]:
    """Return states that the task's own resets draw: qpos (n, nq), qvel (n, nv)."""
    on_mujoco = built.config.physics.model_copy(update={"backend": "mujoco_cpu"})
    config = built.config.model_copy(update={"physics": on_mujoco})
    pipeline = make_pipeline(replace(built, config=config), ALONE, seed=3, num_envs=count)
    try:
        pipeline.reset(random_start=False)
        return np.array(pipeline.qpos(), np.float64), np.array(pipeline.qvel(), np.float64)
    finally:
        pipeline.close()


def fallen_states(built: BuiltTask, count: int) -> tuple[F64, F64]:
    """Return states a second after a drop in any attitude, joints anywhere, by MuJoCo C."""
    model, random = built.robot.model, np.random.default_rng(4)
    qpos, qvel, data = [], [], mujoco.MjData(model)
    for _ in range(count):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = random_pose(model, built.robot.default_qpos, random)
        data.qpos[2] += LIFT_M
        data.ctrl[:] = built.model.ctrl_offset
        for _ in range(round(FALL_S / model.opt.timestep)):
            mujoco.mj_step(model, data)
        qpos.append(data.qpos.copy())
        qvel.append(data.qvel.copy())
    return np.array(qpos), np.array(qvel)


def all_collide(built: BuiltTask) -> BuiltTask:
    """Return the task with every part of its robot colliding: what falls lies on the ground."""
    robot = compile_robot(
        built.robot.path,
        sensors=built.task.sensors,
        timestep_s=built.config.physics.timestep_s,
        collision_geoms=("*_collision",),
        contact=built.task.contact,
    )
    return replace(built, robot=robot)


def room(built: BuiltTask) -> ContactSizes:
    """Return the sizes that `auto` takes for a task."""
    return measure_contacts(built.robot.model, built.robot.default_qpos)
