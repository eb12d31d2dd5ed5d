"""Cart-pole balance: keep the pole up and the cart in the middle. Copy this file to start a task.

A task says which robot it uses, what its terms may read, and how an action becomes ctrl. All
numbers that one tunes (rewards, noise, ranges, sizes) are in ``configs/cartpole.yaml``.
"""

from __future__ import annotations

import numpy as np

from unilab.physics.model import Robot
from unilab.tasks.base import (
    MirrorSpec,
    Task,
    TaskModel,
    ctrl_range_map,
    joint_constants,
    require_actuated,
)
from unilab_kernels.spec import StateField


def describe(robot: Robot) -> TaskModel:
    """Name the parts of the state that the terms read; ctrl = offset + scale * action."""
    nq = int(robot.model.nq)
    cart, pole = (int(i) for i in robot.qpos_ids(["slider", "hinge"]))
    cart_v, pole_v = (int(i) for i in robot.qvel_ids(["slider", "hinge"]))
    require_actuated(robot, ["slider"])
    ctrl_offset, ctrl_scale = ctrl_range_map(robot)
    # Mirroring the cart-pole flips everything but the cosine of the angle.
    flip = MirrorSpec(np.arange(2), np.array([-1, -1], np.float32))
    return TaskModel(
        # A state row is time, qpos, qvel, ...: column 0 is the time.
        fields={
            "cart_pos": StateField((1 + cart,), scalar=True),
            "pole_angle": StateField((1 + pole,), scalar=True),
            "cart_vel": StateField((1 + nq + cart_v,), scalar=True),
            "pole_vel": StateField((1 + nq + pole_v,), scalar=True),
        },
        constants={
            **joint_constants(robot),
            "joint_qpos_ids": np.array([cart, pole], np.float64),
            "joint_qvel_ids": np.array([cart_v, pole_v], np.float64),
        },
        ctrl_offset=ctrl_offset,
        ctrl_scale=ctrl_scale,
        mirrors={
            "cart_state": flip,
            "pole_state": MirrorSpec(np.arange(3), np.array([1, -1, -1], np.float32)),
            "action": MirrorSpec(np.arange(1), np.array([-1], np.float32)),
        },
    )


TASK = Task(robot="cartpole.xml", describe=describe)
