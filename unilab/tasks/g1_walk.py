"""G1 walks on flat ground: follows commanded planar velocity and yaw rate, is pushed, sees noise.

Robot facts and the shape of the task follow mjlab's and MuJoCo Playground's G1 velocity tasks; a
clock that the policy sees, as in Unitree's public recipe, says which foot swings.
"""

from __future__ import annotations

from unilab.errors import ConfigError
from unilab.physics.model import ContactModel, Robot
from unilab.tasks.base import MirrorSpec, Task, TaskModel
from unilab.tasks.mirror import base_mirrors, joint_mirror, vector_mirror
from unilab.tasks.velocity import feet_sensors, velocity_model
from unilab_kernels.spec import CarriedField

SIDES = ("left", "right")  # in the order of the gait clock: left swings in the first half turn
# How firmly the reward `pose` holds a joint: what swings in a step is left free.
POSE_WEIGHTS = {
    "hip_pitch": 0.05,
    "hip_roll": 1.0,
    "hip_yaw": 1.0,
    "knee": 0.05,
    "ankle_pitch": 0.1,
    "ankle_roll": 0.5,
    "waist_yaw": 1.0,
    "waist_roll": 2.0,
    "waist_pitch": 2.0,
    "shoulder_pitch": 0.5,
    "shoulder_roll": 1.0,
    "shoulder_yaw": 1.0,
    "elbow": 0.5,
    "wrist_roll": 0.5,
    "wrist_pitch": 0.5,
    "wrist_yaw": 0.5,
}


def describe(robot: Robot) -> TaskModel:
    """Name the parts of the state that the terms read; ctrl = offset + scale * action."""
    return velocity_model(
        robot,
        pose_weight=lambda joint: _pose_weight(robot, joint),
        carried={"gait_phase": CarriedField(1, scalar=True)},
        mirrors=_mirrors,
    )


def _mirrors(robot: Robot) -> dict[str, MirrorSpec]:
    """Left and right swap; with them the halves of the gait clock, which turns by half a turn."""
    joints = joint_mirror(robot, _twin)
    return {
        **base_mirrors(),
        "joint_pos_rel": joints,
        "joint_velocity": joints,
        "last_action": joints,
        "action": joints,
        "gait_phase": vector_mirror(-1, -1),
    }


def _twin(joint: str) -> str:
    """Return the name of the joint on the other side; one in the middle is its own."""
    for side, other in (SIDES, SIDES[::-1]):
        if joint.startswith(f"{side}_"):
            return other + joint.removeprefix(side)
    return joint


def _pose_weight(robot: Robot, joint: str) -> float:
    for part, weight in POSE_WEIGHTS.items():
        if joint.removeprefix("left_").removeprefix("right_").startswith(part):
            return weight
    raise ConfigError(
        f"{robot.path}: actuated joint '{joint}' is of no part that this task knows; valid: a name "
        f"with {', '.join(POSE_WEIGHTS)} after left_, right_ or nothing"
    )


TASK = Task(
    robot="g1.xml",
    describe=describe,
    sensors=feet_sensors(
        [f"{side}_foot_collision" for side in SIDES], [f"{side}_foot" for side in SIDES]
    ),
    # An episode ends before anything but a foot is on the ground; feet collide with each other too.
    collision_geoms=("*_foot_collision",),
    # A robot that stands on two boxes has 32 constraint rows; on the published capsules it has 112,
    # and a step costs twice as much. Newton converges on the pyramidal cone to rounding within 10
    # iterations; with the elliptic one a step costs 1.2 to 1.4 times as much.
    contact=ContactModel("pyramidal"),
)
