"""What the tasks share in which a legged robot follows velocity commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from unilab.physics.model import ContactSensorSpec, Robot, SensorSpec
from unilab.tasks.base import (
    MirrorSpec,
    TaskModel,
    joint_constants,
    joint_fields,
    root_fields,
    root_starts,
    sensor_field,
    servo_scale,
)
from unilab_kernels.spec import CarriedField

ACTION_SCALE_SHARE = 0.25  # action 1 moves the set-point by this share of effort / kp (mjlab)


def feet_sensors(
    geoms: Sequence[str], sites: Sequence[str], *, floor: str = "floor"
) -> tuple[SensorSpec | ContactSensorSpec, ...]:
    """Return the sensors feet_contact (F,), feet_pos_w (3F,) m and feet_vel_w (3F,) m/s.

    Args:
      geoms: one colliding geom a foot.
      sites: one site a foot, in the same order.
      floor: the geom that they stand on.
    """
    return (
        ContactSensorSpec("feet_contact", geoms=tuple(geoms), against=floor),
        SensorSpec("feet_pos_w", "framepos", site=tuple(sites)),
        SensorSpec("feet_vel_w", "framelinvel", site=tuple(sites)),
    )


def velocity_model(
    robot: Robot,
    *,
    pose_weight: Callable[[str], float],
    carried: Mapping[str, CarriedField],
    mirrors: Callable[[Robot], Mapping[str, MirrorSpec]],
) -> TaskModel:
    """Name the parts of the state that the terms read; ctrl = offset + scale * action.

    Args:
      robot: has a free base, position servos, and the sensors of `feet_sensors`.
      pose_weight: from a joint's name to how firmly the reward `pose` holds it.
      carried: fields beside the command, its timer and the push timer.
      mirrors: from the robot to the mirrors of its observations and its action.

    Raises:
      ConfigError: the robot lacks one of these.
    """
    constants = joint_constants(robot)
    qpos_start, qvel_start = root_starts(robot)
    pose_weights = np.array([pose_weight(name) for name in robot.joint_names])
    return TaskModel(
        fields={
            **root_fields(robot),
            **joint_fields(robot),
            "feet_contact": sensor_field(robot, "feet_contact"),
            "feet_pos_w": sensor_field(robot, "feet_pos_w"),
            "feet_vel_w": sensor_field(robot, "feet_vel_w"),
        },
        constants={
            **constants,
            "pose_weights": pose_weights,
            "base_qpos_start": float(qpos_start),
            "base_qvel_start": float(qvel_start),
        },
        carried={
            "command": CarriedField(3),
            "command_timer": CarriedField(1, scalar=True),
            "fixed_command": CarriedField(4, reset=None),
            "push_timer": CarriedField(1, scalar=True),
            **carried,
        },
        ctrl_offset=constants["default_joint_pos"],
        ctrl_scale=servo_scale(robot, ACTION_SCALE_SHARE),
        mirrors=mirrors(robot),
    )
