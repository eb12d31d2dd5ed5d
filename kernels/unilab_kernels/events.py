"""Events: what happens at a reset, at random intervals, and to fields carried between steps."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

from .rng import uniform
from .terms import carry, interval, reset


@reset
def reset_base(
    qpos_io,
    qvel_io,
    key,
    base_qpos_start,
    base_qvel_start,
    xy_m=0.5,
    z_min_m=0.0,
    z_max_m=0.0,
    yaw_rad=3.1415927,
    lin_vel_ms=0.0,
    ang_vel_rads=0.0,
):
    """Place the free base: random planar offset, height offset, heading and velocity.

    Args:
      qpos_io: (nq,) f64, the default state on entry.
      qvel_io: (nv,) f64, zero on entry.
      key: random key.
      base_qpos_start, base_qvel_start: where the free joint starts in qpos and qvel.
      xy_m: x and y are moved by up to this much.
      z_min_m, z_max_m: range of the height offset.
      yaw_rad: heading is drawn from +- this.
      lin_vel_ms: each linear velocity is drawn from +- this, m/s.
      ang_vel_rads: each angular velocity is drawn from +- this, rad/s.
    """
    p = int(base_qpos_start)
    v = int(base_qvel_start)
    qpos_io[p] += uniform(key, 0, -xy_m, xy_m)
    qpos_io[p + 1] += uniform(key, 1, -xy_m, xy_m)
    qpos_io[p + 2] += uniform(key, 2, z_min_m, z_max_m)
    half = 0.5 * uniform(key, 3, -yaw_rad, yaw_rad)
    c, s = math.cos(half), math.sin(half)
    w, x, y, z = qpos_io[p + 3], qpos_io[p + 4], qpos_io[p + 5], qpos_io[p + 6]
    qpos_io[p + 3] = c * w - s * z
    qpos_io[p + 4] = c * x - s * y
    qpos_io[p + 5] = c * y + s * x
    qpos_io[p + 6] = c * z + s * w
    for j in range(3):
        qvel_io[v + j] += uniform(key, 4 + j, -lin_vel_ms, lin_vel_ms)
        qvel_io[v + 3 + j] += uniform(key, 7 + j, -ang_vel_rads, ang_vel_rads)


@reset
def reset_joints(qpos_io, qvel_io, key, joint_qpos_ids, joint_qvel_ids, pos_rad=0.0, vel_rads=0.0):
    """Move each actuated joint by up to `pos_rad` and give it a speed of up to `vel_rads`.

    Args:
      qpos_io: (nq,) f64, the default state on entry.
      qvel_io: (nv,) f64, zero on entry.
      key: random key.
      joint_qpos_ids: (A,) where the joints are in qpos.
      joint_qvel_ids: (A,) where the joints are in qvel.
      pos_rad: rad (m for a sliding joint).
      vel_rads: rad/s (m/s for a sliding joint).
    """
    for j in range(len(joint_qpos_ids)):
        qpos_io[int(joint_qpos_ids[j])] += uniform(key, 2 * j, -pos_rad, pos_rad)
        qvel_io[int(joint_qvel_ids[j])] += uniform(key, 2 * j + 1, -vel_rads, vel_rads)


@interval
def push(
    push_out,
    push_timer_io,
    fresh,
    key,
    control_dt,
    base_qvel_start,
    min_s,
    max_s,
    xy_ms,
    z_ms=0.0,
    roll_pitch_rads=0.0,
    yaw_rads=0.0,
):
    """Every now and then add a random velocity to the base.

    Args:
      push_out: (nv,) f64, what is added to qvel; zero on entry.
      push_timer_io: (1,) s left until the next push.
      fresh: True on the first observation of an episode (the timer is drawn, nothing is pushed).
      key: random key.
      control_dt: s.
      base_qvel_start: where the free joint starts in qvel.
      min_s, max_s: range of the time between pushes.
      xy_ms, z_ms: bounds of the linear velocity added, m/s, world frame.
      roll_pitch_rads, yaw_rads: bounds of the angular velocity added, rad/s, base frame.
    Source: mjlab's velocity task adds to the root velocity every 1 to 3 s.
    """
    push_timer_io[0] -= control_dt
    if not fresh and push_timer_io[0] > 0.0:
        return False
    push_timer_io[0] = uniform(key, 0, min_s, max_s)
    if fresh:
        return False
    v = int(base_qvel_start)
    push_out[v] += uniform(key, 1, -xy_ms, xy_ms)
    push_out[v + 1] += uniform(key, 2, -xy_ms, xy_ms)
    push_out[v + 2] += uniform(key, 3, -z_ms, z_ms)
    push_out[v + 3] += uniform(key, 4, -roll_pitch_rads, roll_pitch_rads)
    push_out[v + 4] += uniform(key, 5, -roll_pitch_rads, roll_pitch_rads)
    push_out[v + 5] += uniform(key, 6, -yaw_rads, yaw_rads)
    return True


@carry
def track_air_time(feet_contact, feet_air_time_io, control_dt):
    """Time since each foot left the ground, s; 0 while it is down.

    Args:
      feet_contact: (F,) 1 where the foot touches the ground.
      feet_air_time_io: (F,) s.
      control_dt: s.
    """
    for f in range(len(feet_contact)):
        if feet_contact[f] > 0.0:
            feet_air_time_io[f] = 0.0
        else:
            feet_air_time_io[f] += control_dt
