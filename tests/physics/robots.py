"""What the tests of robots share."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from unilab.physics.model import Robot


def forward(robot: Robot, base_z: float | None = None) -> mujoco.MjData:
    """Return the default pose, computed through; `base_z` in m places the base."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.default_qpos
    if base_z is not None:
        data.qpos[2] = base_z
    mujoco.mj_forward(robot.model, data)
    return data


def full_inertia(body: Any) -> np.ndarray:
    """Return a body's inertia (3, 3) about its centre of mass, in the axes of its frame."""
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, body.iquat)
    rotation = rotation.reshape(3, 3)
    return rotation @ np.diag(body.inertia) @ rotation.T


def assert_geom(geom: Any, kind: str, size: Any, start: Any, end: Any = None) -> None:
    """Check type, size and place of a geom; a capsule or cylinder has two ends."""
    assert geom.type[0] == getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}"), geom.name
    np.testing.assert_allclose(geom.size[: len(size)], size, err_msg=geom.name)
    start, end = np.array(start, float), np.array(start if end is None else end, float)
    np.testing.assert_allclose(geom.pos, (start + end) / 2, atol=1e-12, err_msg=geom.name)
    if kind == "capsule":
        half = (end - start) / 2
        assert geom.size[1] == pytest.approx(np.linalg.norm(half))
        axis = np.zeros(3)
        mujoco.mju_rotVecQuat(axis, np.array([0.0, 0, 1]), geom.quat)
        assert abs(axis @ half) == pytest.approx(np.linalg.norm(half))
