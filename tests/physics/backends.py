"""Both physics backends over the same model, for tests that hold for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilab.config import load_config
from unilab.physics.base import Physics
from unilab.physics.contact_sizes import ContactSizes, measure_contacts
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.tasks.base import BuiltTask, build_task
from unilab_kernels.jit import cache_dir

F64 = NDArray[np.float64]
BACKENDS = ("mujoco_cpu", "mujoco_warp")
WARP_CACHE = cache_dir().parent / "warp"


@cache
def task(name: str) -> BuiltTask:
    """Build a task once."""
    return build_task(load_config(name, ()).config)


@cache
def sizes(name: str) -> ContactSizes:
    """Measure a task's contacts once."""
    built = task(name)
    return measure_contacts(built.robot.model, built.robot.default_qpos)


@contextmanager
def physics(
    backend: str,
    built: BuiltTask,
    num_envs: int = 4,
    *,
    groups: tuple[slice, ...] | None = None,
    overlap: bool = False,
    room: ContactSizes | None = None,
    **options: Any,
) -> Iterator[Physics]:
    """Physics of a task's robot on a backend; what it will write starts as NaN."""
    model, chosen = built.robot.model, groups or (slice(0, num_envs),)
    substeps = built.config.physics.substeps
    if backend == "mujoco_cpu":
        made: Physics = MujocoCpu(
            model, num_envs=num_envs, groups=chosen, substeps=substeps, threads=1, overlap=overlap
        )
    else:
        from unilab.physics.mujoco_warp import MujocoWarp

        made = MujocoWarp(
            model,
            num_envs=num_envs,
            groups=chosen,
            substeps=substeps,
            takes_max=takes_max(built),
            sizes=room or sizes(built.config.task),
            device=torch.device("cpu"),
            overlap=overlap,
            kernel_cache=WARP_CACHE,
            **options,
        )
    made.state[:] = made.sensors[:] = np.nan
    try:
        yield made
    finally:
        made.close()


def takes_max(built: BuiltTask) -> NDArray[np.bool_]:
    """Return which sensors count with their largest value over the substeps."""
    flags = np.zeros(built.robot.model.nsensordata, bool)
    for sensor in built.robot.sensors.values():
        flags[sensor.start : sensor.stop] = sensor.reduce != "last"
    return flags


def reduced(made: Physics, built: BuiltTask) -> F64:
    """Return the sensors (N, S) reduced over the substeps, as a kernel reads them."""
    sensors = np.asarray(made.sensors, np.float64)
    return np.where(takes_max(built), sensors.max(axis=1), sensors[:, -1])


def begin(made: Physics, qpos: F64, qvel: F64) -> None:
    """Start every env anew."""
    made.write_state(np.arange(len(qpos), dtype=np.int32), qpos, qvel)


def step(made: Physics, ctrl: F64) -> None:
    """One control step of every group with the same ctrl (N, A) in all substeps."""
    made.ctrl[:] = ctrl[:, None]
    for group, envs in enumerate(made.groups):
        made.wait(made.submit(group, made.ctrl[envs]))
