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
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.runners.backends import make_warp
from unilab.tasks.base import BuiltTask, build_task

F64 = NDArray[np.float64]
BACKENDS = ("mujoco_cpu", "mujoco_warp")


@cache
def task(name: str, *overrides: str) -> BuiltTask:
    """Build a task once."""
    return build_task(load_config(name, overrides).config)


@contextmanager
def physics(
    backend: str,
    built: BuiltTask,
    num_envs: int = 4,
    *,
    groups: tuple[slice, ...] | None = None,
    overlap: bool = False,
    **options: Any,
) -> Iterator[Physics]:
    """Physics of a task's robot on a backend; what it will write starts as NaN."""
    chosen = groups or (slice(0, num_envs),)
    if backend == "mujoco_cpu":
        made: Physics = MujocoCpu(
            built.robot.model,
            num_envs=num_envs,
            groups=chosen,
            substeps=built.config.physics.substeps,
            threads=1,
            overlap=overlap,
        )
    else:
        device = torch.device("cpu")
        made = make_warp(built, chosen, device, num_envs, overlap=overlap, **options)
    made.state[:] = made.sensors[:] = np.nan
    try:
        yield made
    finally:
        made.close()


def reduced(made: Physics, built: BuiltTask) -> F64:
    """Return the sensors (N, S) reduced over the substeps, as a kernel reads them."""
    sensors = np.asarray(made.sensors, np.float64)
    takes_max = np.zeros(sensors.shape[2], bool)
    for sensor in built.robot.sensors.values():
        takes_max[sensor.start : sensor.stop] = sensor.reduce != "last"
    return np.where(takes_max, sensors.max(axis=1), sensors[:, -1])


def begin(made: Physics, qpos: F64, qvel: F64) -> None:
    """Start every env anew."""
    made.write_state(np.arange(len(qpos), dtype=np.int32), qpos, qvel)
