"""How many contacts and constraint rows a model needs, found by letting it fall.

MuJoCo C grows its arrays as it needs; a GPU backend has to know their size before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from unilab.physics.base import F64

_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
POSES, STEPS = 48, 60  # random poses, and solver steps from each
MARGIN, GRAIN = 1.5, 8  # head room over the worst that was seen; sizes are multiples of the grain


@dataclass(frozen=True)
class ContactSizes:
    """Capacity an env.

    Attributes:
      contacts: contact points an env, on average over the envs: they share one pool.
      constraints: constraint rows an env, a strict limit.
    """

    contacts: int
    constraints: int


def measure_contacts(model: Any, qpos: F64, *, seed: int = 0) -> ContactSizes:
    """Drop the robot in random poses with MuJoCo C and return the worst it met, with head room.

    The poses are far worse than training's: any attitude, joints anywhere in their ranges, random
    full controls, half of the bases within reach of the ground from the start.

    Args:
      model: the compiled model.
      qpos: (nq,) the pose that random ones are made from.
      seed: of the poses.

    Returns:
      The sizes; 0 where a model never has a contact or a constraint.
    """
    random = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    contacts = constraints = 0
    for _ in range(POSES):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = random_pose(model, qpos, random)
        data.ctrl[:] = _random_ctrl(model, random)
        for _ in range(STEPS):
            mujoco.mj_step(model, data)
            contacts = max(contacts, data.ncon)
            constraints = max(constraints, data.nefc)
    return ContactSizes(_with_margin(contacts), _with_margin(constraints))


def random_pose(model: Any, qpos: F64, random: np.random.Generator) -> F64:
    """Return a pose (nq,): any attitude near the ground, every limited joint anywhere."""
    pose = np.array(qpos, np.float64)
    for joint in range(model.njnt):
        start = int(model.jnt_qposadr[joint])
        if int(model.jnt_type[joint]) == _FREE:
            turn = random.normal(size=4)
            pose[start + 3 : start + 7] = turn / np.linalg.norm(turn)
            pose[start + 2] *= random.uniform(0.4, 1.4)
        elif model.jnt_limited[joint]:
            pose[start] = random.uniform(*model.jnt_range[joint])
    return pose


def _random_ctrl(model: Any, random: np.random.Generator) -> F64:
    limited = model.actuator_ctrllimited.astype(bool)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
    high = np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)
    return random.uniform(low, high)


def _with_margin(count: int) -> int:
    return GRAIN * int(np.ceil(MARGIN * count / GRAIN))
