"""What the tasks share in which a legged robot follows velocity commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
from unilab.tasks.mirror import vector_mirror
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
    ground = _ground(robot)
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
            **ground.constants,
        },
        carried={
            "command": CarriedField(3),
            "command_timer": CarriedField(1, scalar=True),
            "fixed_command": CarriedField(4, reset=None),
            "push_timer": CarriedField(1, scalar=True),
            **ground.carried,
            **carried,
        },
        ctrl_offset=constants["default_joint_pos"],
        ctrl_scale=servo_scale(robot, ACTION_SCALE_SHARE),
        mirrors={**mirrors(robot), **ground.mirrors},
        logged=("terrain_level",) if robot.terrain is not None else (),
    )


@dataclass(frozen=True)
class _Ground:
    """What uneven ground adds to a task; nothing on the model's own floor."""

    constants: Mapping[str, float | NDArray[np.floating]] = field(default_factory=dict)
    carried: Mapping[str, CarriedField] = field(default_factory=dict)
    mirrors: Mapping[str, MirrorSpec] = field(default_factory=dict)


def _ground(robot: Robot) -> _Ground:
    """Declare the heights for the terms of `unilab_kernels.terrain`, and each env's tile."""
    terrain = robot.terrain
    if terrain is None:
        return _Ground()
    rows, columns = terrain.config.scan_rows, terrain.config.scan_columns
    places = np.arange(rows * columns).reshape(rows, columns)
    scan_x, scan_y = terrain.scan_points
    return _Ground(
        constants={
            "height_grid": terrain.heights.ravel(),
            "grid_frame": terrain.grid_frame,
            "tile_frame": terrain.tile_frame,
            "scan_x": scan_x,
            "scan_y": scan_y,
        },
        carried={
            # Kept across episodes: they are what the curriculum is.
            "terrain_level": CarriedField(1, scalar=True, reset=None),
            "terrain_column": CarriedField(1, scalar=True, reset=None),
            "terrain_start": CarriedField(2, reset=None),
            "fixed_tile": CarriedField(3, reset=None),
            "terrain_walk": CarriedField(6, update="measure_walk"),
        },
        mirrors={
            "height_scan": MirrorSpec(places[:, ::-1].ravel(), np.ones(places.size, np.float32)),
            "base_height_ground": vector_mirror(1),
        },
    )
