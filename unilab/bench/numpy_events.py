"""The terms of the library that draw or carry, for many envs at a time, in NumPy.

Draws happen for the few envs that are due, found once and handled by their indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.numpy_chunk import F32, I64, Chunk
from unilab.bench.numpy_derived import command_norm2, feet_down, twin

F64 = NDArray[np.float64]


def _between(low: float, high: float, unit: F32) -> F32:
    """Numbers in [0, 1) laid between two bounds."""
    return np.float32(low) + np.float32(high - low) * unit


def _due(c: Chunk, name: str) -> I64:
    """Run a timer down by a control step, and return the rows that are due."""
    if c.fresh:
        return np.arange(c.m)
    field = c.carried(name)[:, 0]
    timer = c.vector("timer")
    np.subtract(field, c.number("control_dt"), out=timer)
    np.copyto(field, timer)
    return np.flatnonzero(np.less_equal(timer, 0.0, out=c.mask("m0")))


@twin("carry")
def track_air_time(c: Chunk) -> None:
    """Add the control step; 0 while the foot is down."""
    air, down = c.columns("feet_air_time"), c.shared("feet_down", feet_down)
    up = c.stack("feet_up", len(air), np.bool_)
    np.add(air, c.number("control_dt"), out=air)
    np.logical_not(down, out=up)
    np.multiply(air, up, out=air)
    np.copyto(c.carried("feet_air_time"), air.T)


@twin("command")
def velocity(
    c: Chunk,
    *,
    vx_min: float,
    vx_max: float,
    vy_min: float,
    vy_max: float,
    yaw_min: float,
    yaw_max: float,
    resample_min_s: float,
    resample_max_s: float,
    standing_fraction: float,
    turning_fraction: float = 0.0,
    forward_fraction: float = 0.0,
) -> None:
    """Draw a new command where its time is up."""
    command, timer = c.carried("command"), c.carried("command_timer")[:, 0]
    fixed = c.carried("fixed_command")
    is_fixed = np.greater(fixed[:, 0], 0.0, out=c.mask("is_fixed"))
    any_fixed = bool(is_fixed.any())
    before = timer[is_fixed] if any_fixed else None
    due = _due(c, "command_timer")
    if any_fixed:  # evaluation: nothing is drawn there, and the timer stands still
        timer[is_fixed] = before
        command[is_fixed] = fixed[is_fixed, 1:]
        due = due[~is_fixed[due]]
    if not len(due):
        return
    unit = c.draws.uniform("command/velocity", due, 5)
    timer[due] = _between(resample_min_s, resample_max_s, unit[:, 0])
    drawn = np.empty((len(due), 3), np.float32)
    for column, (low, high) in enumerate(((vx_min, vx_max), (vy_min, vy_max), (yaw_min, yaw_max))):
        drawn[:, column] = _between(low, high, unit[:, 1 + column])
    turning = np.float32(standing_fraction) + np.float32(turning_fraction)
    stands, turns = unit[:, 4] < np.float32(standing_fraction), unit[:, 4] < turning
    forward = ~turns & (unit[:, 4] < turning + np.float32(forward_fraction))
    drawn[turns, :2] = 0.0
    drawn[stands] = 0.0
    drawn[forward, 1:] = 0.0
    command[due] = drawn


@twin("command")
def gait(c: Chunk, *, frequency_hz: float, threshold: float) -> None:
    """Run the gait clock; where told to stand, to the next half turn and no further."""
    c.forget()  # the command term before this one in the list may have drawn
    field = c.carried("gait_phase")[:, 0]
    norm2 = c.shared("command_norm2", command_norm2, carried=True)
    still = np.less(norm2, threshold * threshold, out=c.mask("m0"))
    if c.fresh:
        drawn = c.draws.uniform("command/gait", np.arange(c.m), 1)[:, 0]
        drawn[still] = np.where(drawn[still] >= 0.5, np.float32(0.5), np.float32(0.0))
        field[:] = drawn
        return
    phase, standing = c.scalar("gait_phase"), np.flatnonzero(still)
    before = phase[standing]
    turn = np.float32(frequency_hz) * np.float32(c.number("control_dt"))
    wraps = c.mask("m1")
    np.add(phase, turn, out=phase)
    np.subtract(phase, np.greater_equal(phase, 1.0, out=wraps), out=phase, casting="same_kind")
    if len(standing):
        after = before + turn
        after[(before < 0.5) & (after > 0.5)] = 0.5
        after[after >= 1.0] = 0.0
        phase[standing] = np.where((before == 0.0) | (before == 0.5), before, after)
    np.copyto(field, phase)


@twin("interval")
def push(
    c: Chunk,
    *,
    min_s: float,
    max_s: float,
    xy_ms: float,
    z_ms: float = 0.0,
    roll_pitch_rads: float = 0.0,
    yaw_rads: float = 0.0,
) -> I64:
    """Fill ``push_out`` of the envs that are due, and return their rows."""
    due = _due(c, "push_timer")
    if not len(due):
        return due
    unit = c.draws.uniform("interval/push", due, 7)
    c.carried("push_timer")[due, 0] = _between(min_s, max_s, unit[:, 0])
    if c.fresh:
        return due[:0]
    start = int(c.number("base_qvel_start"))
    bounds = np.array([xy_ms, xy_ms, z_ms, roll_pitch_rads, roll_pitch_rads, yaw_rads], np.float32)
    velocity = -bounds + (np.float32(2.0) * bounds) * unit[:, 1:]
    c.arrays["push_out"][due, start : start + 6] += velocity
    return due


@twin("reset")
def reset_base(
    c: Chunk,
    qpos: F64,
    qvel: F64,
    *,
    xy_m: float = 0.5,
    z_min_m: float = 0.0,
    z_max_m: float = 0.0,
    yaw_rad: float = 3.1415927,
    lin_vel_ms: float = 0.0,
    ang_vel_rads: float = 0.0,
) -> None:
    """Move, turn and set off the base of new episodes; qpos (n, nq), qvel (n, nv) f64."""
    unit = c.draws.uniform("reset/reset_base", np.arange(len(qpos)), 10)
    p, v = int(c.number("base_qpos_start")), int(c.number("base_qvel_start"))
    qpos[:, p : p + 2] += _between(-xy_m, xy_m, unit[:, :2])
    qpos[:, p + 2] += _between(z_min_m, z_max_m, unit[:, 2])
    half = np.float32(0.5) * _between(-yaw_rad, yaw_rad, unit[:, 3])
    cos, sin = np.cos(half), np.sin(half)
    w, x, y, z = qpos[:, p + 3 : p + 7].T.copy()
    qpos[:, p + 3] = cos * w - sin * z
    qpos[:, p + 4] = cos * x - sin * y
    qpos[:, p + 5] = cos * y + sin * x
    qpos[:, p + 6] = cos * z + sin * w
    qvel[:, v : v + 3] += _between(-lin_vel_ms, lin_vel_ms, unit[:, 4:7])
    qvel[:, v + 3 : v + 6] += _between(-ang_vel_rads, ang_vel_rads, unit[:, 7:10])


@twin("reset")
def reset_joints(
    c: Chunk, qpos: F64, qvel: F64, *, pos_rad: float = 0.0, vel_rads: float = 0.0
) -> None:
    """Scatter the joints of new episodes around their default."""
    positions, velocities = (_indices(c, n) for n in ("joint_qpos_ids", "joint_qvel_ids"))
    unit = c.draws.uniform("reset/reset_joints", np.arange(len(qpos)), 2 * len(positions))
    qpos[:, positions] += _between(-pos_rad, pos_rad, unit[:, 0::2])
    qvel[:, velocities] += _between(-vel_rads, vel_rads, unit[:, 1::2])


def _indices(c: Chunk, name: str) -> Any:
    return np.atleast_1d(c.layout.constants[name]).astype(np.int64)
