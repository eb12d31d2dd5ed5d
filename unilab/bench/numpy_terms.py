"""The terms of the library for many envs at a time, in NumPy: rewards and terminations.

Each writes into memory it is given or into a buffer of the chunk, and allocates nothing. Meaning,
units and sources are those of the term of the same name in `unilab_kernels`.
"""

from __future__ import annotations

import math

import numpy as np

from unilab.bench.numpy_chunk import F32, Chunk, Mask
from unilab.bench.numpy_derived import (
    command_norm2,
    feet_down,
    feet_speed2,
    leg_phases,
    planar_error,
    pose_offset,
    sum_of_squares,
    swinging,
    twin,
    yaw_error,
)


def _while_moving(c: Chunk, out: F32, threshold: float) -> None:
    """Zero where the command is to stand."""
    norm2 = c.shared("command_norm2", command_norm2, carried=True)
    np.multiply(out, np.greater_equal(norm2, threshold * threshold, out=c.mask("m0")), out=out)


# -- terminations ---------------------------------------------------------------------------------


@twin("termination")
def tilted(c: Chunk, out: Mask, *, limit_cos: float) -> None:
    """-g_z < limit_cos."""
    np.greater(c.derived("projected_gravity")[2], -limit_cos, out=out)


@twin("termination")
def base_low(c: Chunk, out: Mask, *, height_m: float) -> None:
    """z < height."""
    np.less(c.columns("base_pos")[2], height_m, out=out)


@twin("termination")
def cart_out(c: Chunk, out: Mask, *, limit_m: float) -> None:
    """|x| > limit."""
    np.greater(np.abs(c.scalar("cart_pos"), out=c.vector("t0")), limit_m, out=out)


@twin("termination")
def pole_fallen(c: Chunk, out: Mask, *, limit_rad: float) -> None:
    """|angle| > limit."""
    np.greater(np.abs(c.scalar("pole_angle"), out=c.vector("t0")), limit_rad, out=out)


# -- rewards --------------------------------------------------------------------------------------


@twin("reward")
def alive(_: Chunk, out: F32) -> None:
    """1."""
    out[:] = 1.0


@twin("reward")
def terminated_penalty(c: Chunk, out: F32) -> None:
    """1 where the episode ended as a failure."""
    np.copyto(out, c.terminated)


@twin("reward")
def track_lin_vel(c: Chunk, out: F32, *, std: float) -> None:
    """exp(-error / std^2)."""
    error = c.shared("planar_error", planar_error, carried=True)
    np.multiply(error, -1.0 / (std * std), out=out)
    np.exp(out, out=out)


@twin("reward")
def track_ang_vel(c: Chunk, out: F32, *, std: float) -> None:
    """exp(-e^2 / std^2)."""
    error = c.shared("yaw_error", yaw_error, carried=True)
    np.multiply(error, error, out=out)
    np.multiply(out, -1.0 / (std * std), out=out)
    np.exp(out, out=out)


@twin("reward")
def lin_vel_z(c: Chunk, out: F32) -> None:
    """v_z^2."""
    v = c.derived("lin_vel_b")[2]
    np.multiply(v, v, out=out)


@twin("reward")
def ang_vel_xy(c: Chunk, out: F32) -> None:
    """w_x^2 + w_y^2."""
    sum_of_squares(c, c.columns("ang_vel_b")[:2], out)


@twin("reward")
def tilt(c: Chunk, out: F32) -> None:
    """g_x^2 + g_y^2."""
    sum_of_squares(c, c.derived("projected_gravity")[:2], out)


@twin("reward")
def base_height_low(c: Chunk, out: F32, *, min_height_m: float) -> None:
    """max(min_height - z, 0)."""
    np.subtract(min_height_m, c.columns("base_pos")[2], out=out)
    np.maximum(out, 0.0, out=out)


@twin("reward", wide=True)
def action_rate(c: Chunk, out: F32) -> None:
    """|a_t - a_{t-1}|^2."""
    d = c.matrix("t_joints", c.size("action"))
    np.subtract(c.carried("action"), c.carried("prev_action"), out=d)
    np.einsum("ij,ij->i", d, d, out=out)


@twin("reward", wide=True)
def pose(c: Chunk, out: F32) -> None:
    """Sum of weight (q - default)^2."""
    offset = c.shared("pose_offset", pose_offset, wide=True)
    squares = c.matrix("t_joints", offset.shape[1])
    np.multiply(offset, offset, out=squares)
    np.dot(squares, c.row_constant("pose_weights"), out=out)


@twin("reward", wide=True)
def stand_still(c: Chunk, out: F32, *, threshold: float) -> None:
    """Sum of |q - default| while told to stand."""
    offset = c.shared("pose_offset", pose_offset, wide=True)
    norm2 = c.shared("command_norm2", command_norm2, carried=True)
    away = c.matrix("t_joints", offset.shape[1])
    np.abs(offset, out=away)
    np.dot(away, c.ones(offset.shape[1]), out=out)
    np.multiply(out, np.less(norm2, threshold * threshold, out=c.mask("m0")), out=out)


@twin("reward", wide=True)
def joint_limits(c: Chunk, out: F32) -> None:
    """Sum of |q - clip(q)|: how far joints are beyond their soft limits."""
    q = c.rows("joint_pos")
    beyond = c.matrix("t_joints", q.shape[1])
    np.maximum(q, c.constant("soft_lower"), out=beyond)
    np.minimum(beyond, c.constant("soft_upper"), out=beyond)
    np.subtract(q, beyond, out=beyond)
    np.abs(beyond, out=beyond)
    np.dot(beyond, c.ones(q.shape[1]), out=out)


@twin("reward", wide=True)
def torque(c: Chunk, out: F32) -> None:
    """Sum of squared torques."""
    values = c.derived("joint_torque")
    np.einsum("ij,ij->i", values, values, out=out)


@twin("reward", wide=True)
def effort(c: Chunk, out: F32) -> None:
    """|a|^2."""
    action = c.carried("action")
    np.einsum("ij,ij->i", action, action, out=out)


@twin("reward")
def feet_air_time(c: Chunk, out: F32, *, target_s: float, threshold: float) -> None:
    """Time in the air beyond the target at each touch-down, while told to move."""
    air, down = c.columns("feet_air_time"), c.shared("feet_down", feet_down)
    extra, landed = c.stack("t_feet", len(air)), c.stack("landed", len(air), np.bool_)
    np.greater(air, 0.0, out=landed)
    np.logical_and(landed, down, out=landed)
    np.subtract(air, target_s, out=extra)
    np.minimum(extra, 0.5 * target_s, out=extra)
    np.multiply(extra, landed, out=extra)
    np.add.reduce(extra, axis=0, out=out)
    _while_moving(c, out, threshold)


@twin("reward")
def feet_slip(c: Chunk, out: F32) -> None:
    """Squared planar speed of feet on the ground."""
    speed2, down = c.shared("feet_speed2", feet_speed2), c.shared("feet_down", feet_down)
    slip = c.stack("t_feet", len(down))
    np.multiply(speed2, down, out=slip)
    np.add.reduce(slip, axis=0, out=out)


@twin("reward")
def feet_clearance(c: Chunk, out: F32, *, height_m: float, threshold: float) -> None:
    """Sum of (z - height)^2 |v_xy|, while told to move."""
    z, speed2 = c.columns("feet_pos_w")[2::3], c.shared("feet_speed2", feet_speed2)
    speed, d = c.stack("speed", len(z)), c.stack("t_feet", len(z))
    np.sqrt(speed2, out=speed)
    np.subtract(z, height_m, out=d)
    np.multiply(d, d, out=d)
    np.multiply(d, speed, out=d)
    np.add.reduce(d, axis=0, out=out)
    _while_moving(c, out, threshold)


@twin("reward")
def gait_contact(c: Chunk, out: F32, *, stance_fraction: float) -> None:
    """Number of feet that are down, or up, as the gait clock asks."""
    down, swings = c.shared("feet_down", feet_down), swinging(c, stance_fraction)
    agrees = c.stack("agrees", len(down), np.bool_)
    for parity in range(min(2, len(down))):
        np.not_equal(down[parity::2], swings[parity], out=agrees[parity::2])
    np.add.reduce(agrees, axis=0, dtype=np.float32, out=out)


@twin("reward")
def swing_height(c: Chunk, out: F32, *, height_m: float, stance_fraction: float) -> None:
    """Squared distance of swinging feet from an arc, in units of its height."""
    swings, phases = swinging(c, stance_fraction), c.shared("leg_phases", leg_phases, carried=True)
    z, arc = c.columns("feet_pos_w")[2::3], c.stack("t2", 2)
    d = c.stack("t_feet", len(z))
    np.subtract(phases, 0.5 * stance_fraction - 0.25, out=arc)
    np.multiply(arc, math.pi / (1.0 - stance_fraction), out=arc)
    np.sin(arc, out=arc)
    np.multiply(z, 1.0 / height_m, out=d)
    for parity in range(min(2, len(z))):
        feet = d[parity::2]
        np.subtract(feet, arc[parity], out=feet)
        np.multiply(feet, feet, out=feet)
        np.multiply(feet, swings[parity], out=feet)
    np.add.reduce(d, axis=0, out=out)


@twin("reward")
def feet_apart(c: Chunk, out: F32, *, min_m: float) -> None:
    """How much less than `min_m` the first foot is to the left of the second."""
    w, x, y, z = c.columns("base_quat")
    feet, left = c.columns("feet_pos_w"), c.stack("t3", 3)
    apart, t = c.stack("apart", 3), c.vector("t0")
    np.multiply(x, y, out=left[0])
    np.multiply(w, z, out=t)
    np.subtract(left[0], t, out=left[0])
    np.multiply(x, x, out=left[1])
    np.multiply(z, z, out=t)
    np.add(left[1], t, out=left[1])
    np.subtract(0.5, left[1], out=left[1])
    np.multiply(y, z, out=left[2])
    np.multiply(w, x, out=t)
    np.add(left[2], t, out=left[2])
    np.subtract(feet[0:3], feet[3:6], out=apart)
    np.multiply(left, apart, out=apart)
    np.add(apart[0], apart[1], out=out)
    np.add(out, apart[2], out=out)
    np.multiply(out, -2.0, out=out)
    np.add(out, min_m, out=out)
    np.maximum(out, 0.0, out=out)


@twin("reward")
def pole_upright(c: Chunk, out: F32) -> None:
    """(1 + cos) / 2."""
    np.cos(c.scalar("pole_angle"), out=out)
    np.add(out, 1.0, out=out)
    np.multiply(out, 0.5, out=out)


@twin("reward")
def cart_centered(c: Chunk, out: F32, *, std: float) -> None:
    """exp(-x^2 / std^2)."""
    x = c.scalar("cart_pos")
    np.multiply(x, x, out=out)
    np.multiply(out, -1.0 / (std * std), out=out)
    np.exp(out, out=out)


@twin("reward")
def lin_vel_error(c: Chunk, out: F32) -> None:
    """Distance from the commanded planar velocity."""
    np.sqrt(c.shared("planar_error", planar_error, carried=True), out=out)


@twin("reward")
def ang_vel_error(c: Chunk, out: F32) -> None:
    """Distance from the commanded yaw rate."""
    np.abs(c.shared("yaw_error", yaw_error, carried=True), out=out)
