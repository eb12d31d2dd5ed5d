"""Go1 walks on flat ground: follows commanded planar velocity and yaw rate, is pushed, sees noise.

Robot facts and the shape of the task follow mjlab's and MuJoCo Playground's Go1 velocity tasks; the
numbers in ``configs/go1_walk.yaml`` are tuned for short training on a CPU.
"""

from __future__ import annotations

import numpy as np

from unilab.errors import ConfigError
from unilab.physics.model import ContactModel, Robot
from unilab.tasks.base import MirrorSpec, Task, TaskModel
from unilab.tasks.mirror import base_mirrors, joint_mirror
from unilab.tasks.velocity import feet_sensors, velocity_model
from unilab_kernels.spec import CarriedField

FEET = ("FR", "FL", "RR", "RL")
POSE_WEIGHTS = {"hip": 1.0, "thigh": 0.5, "calf": 0.2}


def describe(robot: Robot) -> TaskModel:
    """Name the parts of the state that the terms read; ctrl = offset + scale * action."""
    return velocity_model(
        robot,
        pose_weight=lambda joint: POSE_WEIGHTS[_part(robot, joint)],
        carried={"feet_air_time": CarriedField(len(FEET), update="track_air_time")},
        mirrors=_mirrors,
    )


def _mirrors(robot: Robot) -> dict[str, MirrorSpec]:
    """Reflection in the plane y = 0: y, roll and yaw change sign, left and right swap."""
    swap = {"FR": "FL", "FL": "FR", "RR": "RL", "RL": "RR"}
    joints = joint_mirror(robot, lambda name: swap[_leg(robot, name)] + name[2:])
    feet = MirrorSpec(np.array([1, 0, 3, 2]), np.ones(4, np.float32))
    return {
        **base_mirrors(),
        "joint_pos_rel": joints,
        "joint_velocity": joints,
        "last_action": joints,
        "action": joints,
        "feet_contacts": feet,
        "feet_air": feet,
    }


def _part(robot: Robot, joint: str) -> str:
    """Return which part of a leg a joint moves: hip, thigh or calf."""
    for part in POSE_WEIGHTS:
        if part in joint:
            return part
    raise ConfigError(
        f"{robot.path}: actuated joint '{joint}' is of no part of a leg; valid: a name with "
        f"{', '.join(POSE_WEIGHTS)}"
    )


def _leg(robot: Robot, joint: str) -> str:
    """Return which leg a joint belongs to: FR, FL, RR or RL."""
    if joint[:2] not in FEET:
        raise ConfigError(
            f"{robot.path}: actuated joint '{joint}' is of no leg; valid: a name that begins with "
            f"{', '.join(FEET)}"
        )
    return joint[:2]


TASK = Task(
    robot="go1.xml",
    describe=describe,
    sensors=feet_sensors([f"{foot}_foot_collision" for foot in FEET], FEET),
    # What touches the ground while walking and falling; legs against each other are left out.
    collision_geoms=("*_foot_collision", "trunk_collision"),
    # Newton converges on it to rounding within 10 iterations and is 2.3 x faster than with the
    # file's elliptic cone of dimension 6, where 1 step in 100 ends 4e-3 rad/s or more off.
    contact=ContactModel("pyramidal", condim={"*_foot_collision": 3}),
)
