"""Derived fields in NumPy, what several terms share, and the register of all NumPy forms of terms.

Each writes into a buffer of the chunk and allocates nothing. Meaning, units and sources are those
of the term of the same name in `unilab_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.numpy_chunk import F32, Chunk, Mask

TWINS: dict[tuple[str, str], Callable[..., Any]] = {}
WIDE: set[tuple[str, str]] = set()  # those that read or give rows (m, k): done part by part


def twin(stage: str, *, wide: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the NumPy form of the term of its name.

    Args:
      stage: "reward" or "termination": ``(chunk, out (m,), **parameters)``; "derived":
        ``(chunk) -> field``; "observation" and the stages that draw or carry: see
        `numpy_observations` and `numpy_events`.
      wide: it works on joint vectors.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TWINS[stage, function.__name__] = function
        if wide:
            WIDE.add((stage, function.__name__))
        return function

    return add


@twin("derived")
def projected_gravity(c: Chunk) -> NDArray[Any]:
    """(3, m): the third row of the rotation matrix, negated."""
    w, x, y, z = c.columns("base_quat")
    out, t = c.stack("projected_gravity", 3), c.vector("t0")
    np.multiply(w, y, out=out[0])
    np.multiply(x, z, out=t)
    np.subtract(out[0], t, out=out[0])
    np.multiply(w, x, out=out[1])
    np.multiply(y, z, out=t)
    np.add(out[1], t, out=out[1])
    np.multiply(x, x, out=out[2])
    np.multiply(y, y, out=t)
    np.add(out[2], t, out=out[2])
    np.subtract(0.5, out[2], out=out[2])
    np.multiply(out[0], 2.0, out=out[0])
    np.multiply(out[1:], -2.0, out=out[1:])
    return out


@twin("derived")
def lin_vel_b(c: Chunk) -> NDArray[Any]:
    """(3, m): v + w t + t x u with t = 2 (v x u), u the vector part of the quaternion."""
    quat, v = c.columns("base_quat"), c.columns("base_lin_vel_w")
    w, u = quat[0], quat[1:]
    t, out = c.stack("t3", 3), c.stack("lin_vel_b", 3)
    scratch = c.vector("t0")
    _cross(v, u, t, scratch)
    np.multiply(t, 2.0, out=t)
    _cross(t, u, out, scratch)
    np.add(out, v, out=out)
    np.multiply(t, w, out=t)
    np.add(out, t, out=out)
    return out


def _cross(a: F32, b: F32, out: F32, scratch: F32) -> None:
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        np.multiply(a[j], b[k], out=out[i])
        np.multiply(a[k], b[j], out=scratch)
        np.subtract(out[i], scratch, out=out[i])


@twin("derived", wide=True)
def joint_torque(c: Chunk) -> NDArray[Any]:
    """(m, A): clip(kp (target - q) - kd qdot)."""
    q, v, limit = c.rows("joint_pos"), c.rows("joint_vel"), c.row_constant("effort_limit")
    out, t = c.matrix("joint_torque", q.shape[1]), c.matrix("t_joints", q.shape[1])
    np.subtract(c.carried("ctrl"), q, out=out)
    np.multiply(out, c.constant("kp"), out=out)
    np.multiply(v, c.constant("kd"), out=t)
    np.subtract(out, t, out=out)
    # np.clip with arrays for bounds takes five times as long as these two.
    np.maximum(out, c.tiled("-effort_limit", -limit), out=out)
    np.minimum(out, c.constant("effort_limit"), out=out)
    return out


def pose_offset(c: Chunk) -> NDArray[Any]:
    """(m, A): joint positions minus the default pose, rad."""
    q = c.rows("joint_pos")
    out = c.matrix("pose_offset", q.shape[1])
    np.subtract(q, c.constant("default_joint_pos"), out=out)
    return out


def planar_error(c: Chunk) -> NDArray[Any]:
    """(m,): squared distance from the commanded planar velocity, (m/s)^2."""
    d, out = c.stack("t2", 2), c.vector("planar_error")
    np.subtract(c.columns("command")[:2], c.derived("lin_vel_b")[:2], out=d)
    np.multiply(d, d, out=d)
    np.add(d[0], d[1], out=out)
    return out


def yaw_error(c: Chunk) -> NDArray[Any]:
    """(m,): commanded minus actual yaw rate, rad/s."""
    out = c.vector("yaw_error")
    np.subtract(c.columns("command")[2], c.columns("ang_vel_b")[2], out=out)
    return out


def command_norm2(c: Chunk) -> NDArray[Any]:
    """(m,): squared length of the command."""
    out = c.vector("command_norm2")
    sum_of_squares(c, c.columns("command"), out)
    return out


def feet_speed2(c: Chunk) -> NDArray[Any]:
    """(F, m): squared planar speed of each foot, (m/s)^2."""
    v = c.columns("feet_vel_w")
    out, t = c.stack("feet_speed2", len(v) // 3), c.stack("t_feet", len(v) // 3)
    np.multiply(v[0::3], v[0::3], out=out)
    np.multiply(v[1::3], v[1::3], out=t)
    np.add(out, t, out=out)
    return out


def feet_down(c: Chunk) -> NDArray[Any]:
    """(F, m) bool: the foot touches the ground."""
    contact = c.columns("feet_contact")
    out = c.stack("feet_down", len(contact), np.bool_)
    np.greater(contact, 0.0, out=out)
    return out


def leg_phases(c: Chunk) -> NDArray[Any]:
    """(2, m): gait phase of even feet and of odd feet, half a turn behind; turns."""
    phase, out, whole = c.scalar("gait_phase"), c.stack("leg_phases", 2), c.vector("t0")
    np.copyto(out[0], phase)
    np.add(phase, 0.5, out=out[1])
    np.floor(out[1], out=whole)
    np.subtract(out[1], whole, out=out[1])
    return out


def swinging(c: Chunk, stance_fraction: float) -> Mask:
    """(2, m): even and odd feet should be in the air."""
    phases, margin = c.shared("leg_phases", leg_phases, carried=True), 0.5 * stance_fraction - 0.25
    out, before = c.stack("swinging", 2, np.bool_), c.stack("before", 2, np.bool_)
    np.greater(phases, margin, out=out)
    np.less(phases, 0.5 - margin, out=before)
    np.logical_and(out, before, out=out)
    return out


def sum_of_squares(c: Chunk, stack: F32, out: F32) -> None:
    """Squares of (k, m) summed over the components."""
    t = c.vector("t0")
    np.multiply(stack[0], stack[0], out=out)
    for row in stack[1:]:
        np.multiply(row, row, out=t)
        np.add(out, t, out=out)
