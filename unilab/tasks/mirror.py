"""Left-right symmetry of a robot: the reflection in the plane y = 0, as permutations and signs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unilab.errors import ConfigError, nearest
from unilab.physics.model import Robot
from unilab.tasks.base import MirrorSpec


def joint_mirror(robot: Robot, twin_of: Callable[[str], str]) -> MirrorSpec:
    """Return the mirror of a vector over the actuated joints: positions, velocities, actions.

    A rotation about (x, y, z) becomes one about (-x, y, -z). So roll and yaw change sign and pitch
    does not, where the twin's axis is written the same way; the sign is read off the axes.

    Args:
      robot: the compiled robot.
      twin_of: name of a joint -> name of its mirror image (its own, for one in the middle).

    Raises:
      ConfigError: an actuated joint has no twin among the actuated joints, or one about an axis
        that is not the mirror image of its own.
    """
    names = list(robot.joint_names)
    twins = [twin_of(name) for name in names]
    perm, sign = [], []
    for name, twin in zip(names, twins, strict=True):
        if twin not in names:
            raise ConfigError(
                f"{robot.path}: no actuated joint is named '{twin}', the mirror image of '{name}'; "
                f"{nearest(twin, names)}"
            )
        own, other = robot.model.joint(name).axis, robot.model.joint(twin).axis
        along = float(np.dot(np.array([-1.0, 1.0, -1.0]) * own, other))
        if not np.isclose(abs(along), 1.0, atol=1e-6):
            raise ConfigError(
                f"{robot.path}: joint '{twin}' turns about {other.tolist()}, which is not the "
                f"mirror image of '{name}', about {own.tolist()}"
            )
        perm.append(names.index(twin))
        sign.append(np.sign(along))
    return MirrorSpec(np.array(perm), np.array(sign, np.float32))


def vector_mirror(*signs: int) -> MirrorSpec:
    """Return the mirror of a vector whose numbers stay where they are, each with its sign."""
    return MirrorSpec(np.arange(len(signs)), np.array(signs, np.float32))


def base_mirrors() -> dict[str, MirrorSpec]:
    """Return the mirrors of the observation terms of a free base: y, roll and yaw change sign."""
    return {
        "base_lin_vel": vector_mirror(1, -1, 1),
        "base_ang_vel": vector_mirror(-1, 1, -1),
        "gravity": vector_mirror(1, -1, 1),
        "velocity_command": vector_mirror(1, -1, -1),
        "base_height": vector_mirror(1),
    }
