"""Every term of the library written a second time: float64, NumPy, all environments at once.

A reward, termination, observation or derived term is a function of an `Envs`, whose attributes are
arrays over the environments, and of its parameters. A term that draws or carries is a function of
one environment's record. Nothing is shared with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import rng_reference as rng

ORACLES: dict[tuple[str, str], Callable[..., Any]] = {}


def oracle(stage: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        ORACLES[stage, function.__name__] = function
        return function

    return add


class Envs:
    """Named arrays: (N, size), or (N,) for a scalar field; constants as they are."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def rotation_matrices(quat):
    """(N, 3, 3) body to world, from (N, 4) wxyz."""
    w, x, y, z = quat.T
    return np.stack(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    ).transpose(2, 0, 1)


def quaternion_product(a, b):
    return np.array(
        [
            a[0] * b[0] - a[1:] @ b[1:],
            *(a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])),
        ]
    )


# -- derived fields -----------------------------------------------------------------------------


@oracle("derived")
def projected_gravity(e):
    return rotation_matrices(e.base_quat).transpose(0, 2, 1) @ np.array([0.0, 0.0, -1.0])


@oracle("derived")
def lin_vel_b(e):
    return np.einsum("nji,nj->ni", rotation_matrices(e.base_quat), e.base_lin_vel_w)


@oracle("derived")
def joint_torque(e):
    wanted = e.kp * (e.ctrl - e.joint_pos) - e.kd * e.joint_vel
    return np.clip(wanted, -e.effort_limit, e.effort_limit)


def ground_at(e, x, y):
    """Heights under points: weights of the three nodes of the triangle that each is in."""
    left, bottom, per_m, columns, rows = e.grid_frame
    grid = e.height_grid.reshape(int(rows), int(columns))
    u = np.clip((x - left) * per_m, 0, columns - 1)
    v = np.clip((y - bottom) * per_m, 0, rows - 1)
    c = np.minimum(np.floor(u), columns - 2).astype(int)
    r = np.minimum(np.floor(v), rows - 2).astype(int)
    fu, fv = u - c, v - r
    below = np.stack([1 - fu, fu - fv, np.zeros_like(fu), fv])  # under the diagonal
    above = np.stack([1 - fv, np.zeros_like(fu), fv - fu, fu])
    weights = np.where(fu >= fv, below, above)
    nodes = np.stack([grid[r, c], grid[r, c + 1], grid[r + 1, c], grid[r + 1, c + 1]])
    return np.sum(weights * nodes, axis=0)


def headings(quat):
    """(N,) complex numbers: the direction of the base's x axis seen from above."""
    forward = rotation_matrices(quat)[:, :2, 0]
    turned = forward[:, 0] + 1j * forward[:, 1]
    return turned / np.abs(turned)


@oracle("derived")
def ground_height(e):
    return ground_at(e, e.base_pos[:, 0], e.base_pos[:, 1])


@oracle("derived")
def feet_ground(e):
    return ground_at(e, e.feet_pos_w[:, 0::3], e.feet_pos_w[:, 1::3])


@oracle("derived")
def ground_scan(e):
    points = headings(e.base_quat)[:, None] * (e.scan_x + 1j * e.scan_y)
    ground = ground_at(e, e.base_pos[:, :1] + points.real, e.base_pos[:, 1:2] + points.imag)
    return e.base_pos[:, 2:3] - ground


# -- rewards ------------------------------------------------------------------------------------


def speed_command(e):
    return np.linalg.norm(e.command, axis=1)


@oracle("reward")
def alive(e):
    return np.ones(e.n)


@oracle("reward")
def terminated_penalty(e):
    return e.terminated.astype(float)


@oracle("reward")
def track_lin_vel(e, std):
    distance = np.linalg.norm(e.command[:, :2] - e.lin_vel_b[:, :2], axis=1)
    return np.exp(-((distance / std) ** 2))


@oracle("reward")
def track_ang_vel(e, std):
    return np.exp(-(((e.command[:, 2] - e.ang_vel_b[:, 2]) / std) ** 2))


@oracle("reward")
def lin_vel_z(e):
    return e.lin_vel_b[:, 2] ** 2


@oracle("reward")
def ang_vel_xy(e):
    return np.sum(e.ang_vel_b[:, :2] ** 2, axis=1)


@oracle("reward")
def tilt(e):
    return np.sum(e.projected_gravity[:, :2] ** 2, axis=1)


@oracle("reward")
def base_height_low(e, min_height_m):
    return np.clip(min_height_m - e.base_pos[:, 2], 0.0, None)


@oracle("reward")
def base_height_low_ground(e, min_height_m):
    return np.clip(min_height_m + e.ground_height - e.base_pos[:, 2], 0.0, None)


@oracle("reward")
def feet_clearance_ground(e, height_m, threshold):
    speed = np.linalg.norm(e.feet_vel_w.reshape(e.n, -1, 3)[:, :, :2], axis=2)
    height = e.feet_pos_w[:, 2::3] - e.feet_ground
    wrong = np.sum((height - height_m) ** 2 * speed, axis=1)
    return np.where(speed_command(e) >= threshold, wrong, 0.0)


@oracle("reward")
def action_rate(e):
    return np.sum((e.action - e.prev_action) ** 2, axis=1)


@oracle("reward")
def pose(e):
    return (e.joint_pos - e.default_joint_pos) ** 2 @ e.pose_weights


@oracle("reward")
def stand_still(e, threshold):
    away = np.abs(e.joint_pos - e.default_joint_pos).sum(axis=1)
    return np.where(speed_command(e) < threshold, away, 0.0)


@oracle("reward")
def joint_limits(e):
    inside = np.clip(e.joint_pos, e.soft_lower, e.soft_upper)
    return np.abs(e.joint_pos - inside).sum(axis=1)


@oracle("reward")
def torque(e):
    return np.sum(e.joint_torque**2, axis=1)


@oracle("reward")
def feet_air_time(e, target_s, threshold):
    landed = (e.feet_contact > 0) & (e.feet_air_time > 0)
    beyond = np.minimum(e.feet_air_time - target_s, target_s / 2)
    return np.where(speed_command(e) >= threshold, np.sum(landed * beyond, axis=1), 0.0)


@oracle("reward")
def feet_slip(e):
    planar = e.feet_vel_w.reshape(e.n, -1, 3)[:, :, :2]
    return np.sum((e.feet_contact > 0) * np.sum(planar**2, axis=2), axis=1)


@oracle("reward")
def feet_clearance(e, height_m, threshold):
    speed = np.linalg.norm(e.feet_vel_w.reshape(e.n, -1, 3)[:, :, :2], axis=2)
    height = e.feet_pos_w.reshape(e.n, -1, 3)[:, :, 2]
    wrong = np.sum((height - height_m) ** 2 * speed, axis=1)
    return np.where(speed_command(e) >= threshold, wrong, 0.0)


def swing_progress(e, stance_fraction, num_feet):
    """(N, F) how far through its swing each foot is, in (0, 1); NaN where it is to be down."""
    half_turns = np.arange(num_feet) % 2
    phase = np.mod(e.gait_phase[:, None] + 0.5 * half_turns, 1.0)
    length = 1.0 - stance_fraction
    progress = 0.5 + (phase - 0.25) / length  # the middle of the swing is a quarter turn in
    return np.where((progress > 0) & (progress < 1), progress, np.nan)


@oracle("reward")
def gait_contact(e, stance_fraction):
    swings = np.isfinite(swing_progress(e, stance_fraction, e.feet_contact.shape[1]))
    return np.sum(swings == (e.feet_contact <= 0), axis=1)


@oracle("reward")
def swing_height(e, height_m, stance_fraction):
    height = e.feet_pos_w.reshape(e.n, -1, 3)[:, :, 2]
    arc = height_m * np.sin(np.pi * swing_progress(e, stance_fraction, height.shape[1]))
    return np.nansum(((height - arc) / height_m) ** 2, axis=1)


@oracle("reward")
def feet_apart(e, min_m):
    feet = e.feet_pos_w.reshape(e.n, -1, 3)
    in_base = np.einsum("nji,nj->ni", rotation_matrices(e.base_quat), feet[:, 0] - feet[:, 1])
    return np.clip(min_m - in_base[:, 1], 0.0, None)


@oracle("reward")
def pole_upright(e):
    return np.cos(e.pole_angle / 2) ** 2


@oracle("reward")
def cart_centered(e, std):
    return np.exp(-((e.cart_pos / std) ** 2))


@oracle("reward")
def effort(e):
    return np.sum(e.action**2, axis=1)


@oracle("reward")
def lin_vel_error(e):
    return np.linalg.norm(e.command[:, :2] - e.lin_vel_b[:, :2], axis=1)


@oracle("reward")
def ang_vel_error(e):
    return np.abs(e.command[:, 2] - e.ang_vel_b[:, 2])


# -- terminations -------------------------------------------------------------------------------


@oracle("termination")
def tilted(e, limit_cos):
    return e.projected_gravity @ np.array([0.0, 0.0, -1.0]) < limit_cos


@oracle("termination")
def base_low(e, height_m):
    return e.base_pos[:, 2] < height_m


@oracle("termination")
def base_low_ground(e, height_m):
    return e.base_pos[:, 2] < e.ground_height + height_m


@oracle("termination")
def terrain_left(e, margin_m):
    left, bottom, per_m, columns, rows = e.grid_frame
    first = np.array([left, bottom]) + margin_m
    last = np.array([left + (columns - 1) / per_m, bottom + (rows - 1) / per_m]) - margin_m
    return np.any((e.base_pos[:, :2] < first) | (e.base_pos[:, :2] > last), axis=1)


@oracle("termination")
def cart_out(e, limit_m):
    return np.abs(e.cart_pos) > limit_m


@oracle("termination")
def pole_fallen(e, limit_rad):
    return np.abs(e.pole_angle) > limit_rad


# -- observations -------------------------------------------------------------------------------


def _copied(name: str, field: str) -> None:
    ORACLES["observation", name] = lambda e: getattr(e, field)


_copied("base_ang_vel", "ang_vel_b")
_copied("base_lin_vel", "lin_vel_b")
_copied("gravity", "projected_gravity")
_copied("velocity_command", "command")
_copied("joint_velocity", "joint_vel")
_copied("last_action", "action")
_copied("feet_air", "feet_air_time")


@oracle("observation")
def joint_pos_rel(e):
    return e.joint_pos - e.default_joint_pos


@oracle("observation")
def feet_contacts(e):
    return (e.feet_contact > 0).astype(float)


@oracle("observation")
def gait_phase(e):
    turn = np.exp(2j * np.pi * e.gait_phase)
    return np.stack([turn.real, turn.imag], axis=1)


@oracle("observation")
def base_height(e):
    return e.base_pos[:, 2:3]


@oracle("observation")
def height_scan(e, clip_m=1.0):
    return np.clip(e.ground_scan, -clip_m, clip_m)


@oracle("observation")
def base_height_ground(e):
    return (e.base_pos[:, 2] - e.ground_height)[:, None]


@oracle("observation")
def cart_state(e):
    return np.stack([e.cart_pos, e.cart_vel], axis=1)


@oracle("observation")
def pole_state(e):
    return np.stack([np.cos(e.pole_angle), np.sin(e.pole_angle), e.pole_vel], axis=1)


# -- terms that carry or draw: one environment, whose record they change --------------------------


@oracle("carry")
def track_air_time(env):
    for foot, touches in enumerate(env["feet_contact"]):
        before = env["feet_air_time"][foot]
        env["feet_air_time"][foot] = 0.0 if touches > 0 else before + env["control_dt"]


@oracle("carry")
def measure_walk(env):
    walk, command = env["terrain_walk"], env["command"]
    walk[:2] = env["base_pos"][:2] - env["terrain_start"]
    turn = headings(env["base_quat"][None])[0] * (command[0] + 1j * command[1])
    walk[2:4] += np.array([turn.real, turn.imag]) * env["control_dt"]
    walk[5] += env["control_dt"]
    if env["terminated"]:
        left = max(float(env["episode_length_s"]) - walk[5], 0.0)
        walk[4] = np.hypot(command[0], command[1]) * left


@oracle("command")
def velocity(env, fresh, key, **p):
    if env["fixed_command"][0] > 0:
        env["command"][:] = env["fixed_command"][1:]
        return
    env["command_timer"][0] -= np.float32(env["control_dt"])
    if env["command_timer"][0] > 0 and not fresh:
        return
    env["command_timer"][0] = rng.uniform(key, 0, p["resample_min_s"], p["resample_max_s"])
    for n, axis in enumerate(("vx", "vy", "yaw")):
        env["command"][n] = rng.uniform(key, n + 1, p[f"{axis}_min"], p[f"{axis}_max"])
    stand = p["standing_fraction"]
    turn = stand + p.get("turning_fraction", 0.0)
    forward = turn + p.get("forward_fraction", 0.0)
    regime = rng.uniform01(key, 4)
    if regime < stand:
        env["command"][:] = 0.0
    elif regime < turn:
        env["command"][:2] = 0.0
    elif regime < forward:
        env["command"][1:] = 0.0


@oracle("command")
def gait(env, fresh, key, *, frequency_hz, threshold):
    stands = np.linalg.norm(env["command"].astype(float)) < threshold
    before = float(env["gait_phase"][0])
    if fresh:
        drawn = rng.uniform01(key, 0)
        env["gait_phase"][0] = np.floor(2 * drawn) / 2 if stands else drawn
        return
    after = before + frequency_hz * float(env["control_dt"])
    if stands:  # not beyond the end of the half turn that it is in; there it stays
        after = min(after, np.ceil(2 * before) / 2)
    env["gait_phase"][0] = np.mod(after, 1.0)


@oracle("interval")
def push(env, fresh, key, *, min_s, max_s, xy_ms, z_ms=0.0, roll_pitch_rads=0.0, yaw_rads=0.0):
    env["push_timer"][0] -= np.float32(env["control_dt"])
    if env["push_timer"][0] > 0 and not fresh:
        return None
    env["push_timer"][0] = rng.uniform(key, 0, min_s, max_s)
    if fresh:
        return None
    bounds = [xy_ms, xy_ms, z_ms, roll_pitch_rads, roll_pitch_rads, yaw_rads]
    kick = np.zeros(env["nv"])
    first = int(env["base_qvel_start"])
    kick[first : first + 6] = [rng.uniform(key, n + 1, -b, b) for n, b in enumerate(bounds)]
    return kick


@oracle("reset")
def reset_base(
    env,
    key,
    xy_m=0.5,
    z_min_m=0.0,
    z_max_m=0.0,
    yaw_rad=3.1415927,
    lin_vel_ms=0.0,
    ang_vel_rads=0.0,
):
    q, v = int(env["base_qpos_start"]), int(env["base_qvel_start"])
    env["qpos"][q] += rng.uniform(key, 0, -xy_m, xy_m)
    env["qpos"][q + 1] += rng.uniform(key, 1, -xy_m, xy_m)
    env["qpos"][q + 2] += rng.uniform(key, 2, z_min_m, z_max_m)
    yaw = rng.uniform(key, 3, -yaw_rad, yaw_rad)
    turn = np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    env["qpos"][q + 3 : q + 7] = quaternion_product(turn, env["qpos"][q + 3 : q + 7])
    for n in range(3):
        env["qvel"][v + n] += rng.uniform(key, 4 + n, -lin_vel_ms, lin_vel_ms)
        env["qvel"][v + 3 + n] += rng.uniform(key, 7 + n, -ang_vel_rads, ang_vel_rads)


@oracle("reset")
def reset_joints(env, key, pos_rad=0.0, vel_rads=0.0):
    for j, (q, v) in enumerate(zip(env["joint_qpos_ids"], env["joint_qvel_ids"], strict=True)):
        env["qpos"][int(q)] += rng.uniform(key, 2 * j, -pos_rad, pos_rad)
        env["qvel"][int(v)] += rng.uniform(key, 2 * j + 1, -vel_rads, vel_rads)


@oracle("reset")
def terrain_spawn(env, key, first_levels=1.0):
    x, y, size, levels, columns = env["tile_frame"]
    walk, fixed = env["terrain_walk"], env["fixed_tile"]
    level, column = int(env["terrain_level"][0]), env["env_id"] % int(columns)
    if fixed[0] > 0:
        level, column = int(fixed[1]), int(fixed[2])
    elif env["episode"] == 1:
        level = int(rng.uniform(key, 0, 0.0, first_levels))
    else:
        walked, asked = np.hypot(*walk[:2]), np.hypot(*walk[2:4]) + walk[4]
        level += 1 if walked > size / 2 else -1 if walked < asked / 2 else 0
        if level >= levels:
            level = int(rng.uniform(key, 1, 0.0, levels))
    level = int(np.clip(level, 0, levels - 1))
    env["terrain_level"][0], env["terrain_column"][0] = level, column
    q = int(env["base_qpos_start"])
    env["qpos"][q : q + 2] += [x + level * size, y + column * size]
    env["terrain_start"][:] = env["qpos"][q : q + 2]
    start = env["terrain_start"].astype(float)[:, None]
    env["qpos"][q + 2] += ground_at(Envs(env), *start)[0]
