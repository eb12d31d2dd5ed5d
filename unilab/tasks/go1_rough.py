"""Go1 walks on rough ground, slopes, stairs and waves, and sees their heights around it.

The task is that of flat ground (`go1_walk`); what the ground adds is declared by `velocity_model`.
Everything else is in ``configs/go1_rough.yaml``: the ground and its levels, the height scan, terms
that measure heights from the ground. The shape follows mjlab's rough Go1 task.
"""

from __future__ import annotations

from dataclasses import replace

from unilab.errors import ConfigError
from unilab.physics.model import Robot
from unilab.tasks import go1_walk
from unilab.tasks.base import TaskModel


def describe(robot: Robot) -> TaskModel:
    """Name the parts of the state that the terms read; ctrl = offset + scale * action."""
    if robot.terrain is None:
        raise ConfigError(
            "terrain.kinds: this task needs uneven ground; give kinds of tiles, such as "
            "[rough, stairs_up], or train go1_walk"
        )
    return go1_walk.describe(robot)


TASK = replace(go1_walk.TASK, describe=describe)
