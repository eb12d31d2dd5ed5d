"""Reward terms. Each returns its value; the kernel multiplies it by weight and control dt."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

from .terms import reward


@reward
def alive():
    """1 for every step."""
    return 1.0


@reward
def terminated_penalty(terminated):
    """1 on the step that ends the episode as a failure (not on a time-out)."""
    return 1.0 if terminated else 0.0


@reward
def track_lin_vel(lin_vel_b, command, std):
    """Follow the commanded planar velocity: exp(-|c_xy - v_xy|^2 / std^2), in [0, 1].

    Args:
      lin_vel_b: (3,) base linear velocity in the base frame, m/s.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      std: tolerance, m/s.
    Source: Rudin et al. 2021 (legged_gym); mjlab velocity task.
    """
    ex = command[0] - lin_vel_b[0]
    ey = command[1] - lin_vel_b[1]
    return math.exp(-(ex * ex + ey * ey) / (std * std))


@reward
def track_ang_vel(ang_vel_b, command, std):
    """Follow the commanded yaw rate: exp(-(c_yaw - w_z)^2 / std^2), in [0, 1].

    Args:
      ang_vel_b: (3,) base angular velocity in the base frame, rad/s.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      std: tolerance, rad/s.
    Source: Rudin et al. 2021 (legged_gym).
    """
    e = command[2] - ang_vel_b[2]
    return math.exp(-(e * e) / (std * std))


@reward
def lin_vel_z(lin_vel_b):
    """Squared vertical velocity of the base, (m/s)^2."""
    return lin_vel_b[2] * lin_vel_b[2]


@reward
def ang_vel_xy(ang_vel_b):
    """Squared roll and pitch rate of the base, (rad/s)^2."""
    return ang_vel_b[0] * ang_vel_b[0] + ang_vel_b[1] * ang_vel_b[1]


@reward
def tilt(projected_gravity):
    """Squared horizontal part of gravity in the base frame: sin^2 of the tilt."""
    x, y = projected_gravity[0], projected_gravity[1]
    return x * x + y * y


@reward
def base_height_low(base_pos, min_height_m):
    """How far the base is below `min_height_m`, m (0 above it)."""
    return max(min_height_m - base_pos[2], 0.0)


@reward
def action_rate(action, prev_action):
    """Squared change of the action between two steps: |a_t - a_{t-1}|^2."""
    total = 0.0
    for j in range(len(action)):
        d = action[j] - prev_action[j]
        total += d * d
    return total


@reward
def pose(joint_pos, default_joint_pos, pose_weights):
    """Weighted squared distance from the default joint pose, rad^2.

    Args:
      joint_pos: (A,) rad.
      default_joint_pos: (A,) rad.
      pose_weights: (A,) weight of each joint.
    """
    total = 0.0
    for j in range(len(joint_pos)):
        d = joint_pos[j] - default_joint_pos[j]
        total += pose_weights[j] * d * d
    return total


@reward
def stand_still(joint_pos, default_joint_pos, command, threshold):
    """Absolute distance from the default pose while the command is to stand, rad.

    Args:
      joint_pos: (A,) rad.
      default_joint_pos: (A,) rad.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      threshold: |command| below it means standing.
    """
    norm2 = command[0] * command[0] + command[1] * command[1] + command[2] * command[2]
    if norm2 >= threshold * threshold:
        return 0.0
    total = 0.0
    for j in range(len(joint_pos)):
        total += abs(joint_pos[j] - default_joint_pos[j])
    return total


@reward
def joint_limits(joint_pos, soft_lower, soft_upper):
    """Sum of how far joints are beyond their soft limits, rad.

    Args:
      joint_pos: (A,) rad.
      soft_lower: (A,) rad.
      soft_upper: (A,) rad.
    """
    total = 0.0
    for j in range(len(joint_pos)):
        total += max(soft_lower[j] - joint_pos[j], 0.0) + max(joint_pos[j] - soft_upper[j], 0.0)
    return total


@reward
def torque(joint_torque):
    """Sum of squared joint torques, (N m)^2."""
    total = 0.0
    for j in range(len(joint_torque)):
        total += joint_torque[j] * joint_torque[j]
    return total


@reward
def feet_air_time(feet_contact, feet_air_time, command, target_s, threshold):
    """At each touch-down the time in the air beyond `target_s`, s, while told to move.

    Args:
      feet_contact: (F,) 1 where the foot touches the ground.
      feet_air_time: (F,) s in the air before this step (0 where the foot was down).
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      target_s: the air time that scores zero.
      threshold: |command| above it means moving.
    Source: Rudin et al. 2021 (legged_gym).
    """
    norm2 = command[0] * command[0] + command[1] * command[1] + command[2] * command[2]
    if norm2 < threshold * threshold:
        return 0.0
    total = 0.0
    for f in range(len(feet_contact)):
        if feet_contact[f] > 0.0 and feet_air_time[f] > 0.0:
            total += min(feet_air_time[f] - target_s, 0.5 * target_s)
    return total


@reward
def feet_slip(feet_contact, feet_vel_w):
    """Sum over feet on the ground of their squared planar velocity, (m/s)^2.

    Args:
      feet_contact: (F,) 1 where the foot touches the ground.
      feet_vel_w: (3F,) m/s in the world frame.
    """
    total = 0.0
    for f in range(len(feet_contact)):
        if feet_contact[f] > 0.0:
            vx, vy = feet_vel_w[3 * f], feet_vel_w[3 * f + 1]
            total += vx * vx + vy * vy
    return total


@reward
def feet_clearance(feet_pos_w, feet_vel_w, command, height_m, threshold):
    """Moving feet away from the wanted swing height: sum (z - height)^2 |v_xy|, while told to move.

    Args:
      feet_pos_w: (3F,) m, world frame.
      feet_vel_w: (3F,) m/s, world frame.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      height_m: height of the foot site at mid swing.
      threshold: |command| above it means moving.
    Source: MuJoCo Playground's Go1 joystick task (form), mjlab velocity task (gate).
    """
    norm2 = command[0] * command[0] + command[1] * command[1] + command[2] * command[2]
    if norm2 < threshold * threshold:
        return 0.0
    total = 0.0
    for f in range(len(feet_pos_w) // 3):
        vx, vy = feet_vel_w[3 * f], feet_vel_w[3 * f + 1]
        d = feet_pos_w[3 * f + 2] - height_m
        total += d * d * math.sqrt(vx * vx + vy * vy)
    return total


@reward
def gait_contact(feet_contact, gait_phase, stance_fraction):
    """How many feet touch the ground, or do not, as the gait clock asks.

    Args:
      feet_contact: (F,) 1 where the foot touches the ground.
      gait_phase: turns, in [0, 1): foot 0 swings within the first half; odd feet are half a turn
        behind.
      stance_fraction: share of a turn that a foot is down, 0.5 to 1.
    Source: the contact reward of Unitree's public G1 recipe (unitree_rl_gym, BSD-3-Clause).
    """
    margin = 0.5 * stance_fraction - 0.25
    total = 0.0
    for f in range(len(feet_contact)):
        phase = gait_phase
        if f % 2 == 1:
            phase = phase - 0.5 if phase >= 0.5 else phase + 0.5
        swings = phase > margin and phase < 0.5 - margin
        if swings != (feet_contact[f] > 0.0):
            total += 1.0
    return total


@reward
def swing_height(feet_pos_w, gait_phase, height_m, stance_fraction):
    """Swinging feet off an arc: the sum of ((z - height sin(pi s)) / height)^2, s in (0, 1).

    Args:
      feet_pos_w: (3F,) m, world frame; z is 0 where the foot is down.
      gait_phase: turns, in [0, 1): foot 0 swings within the first half; odd feet are half a turn
        behind.
      height_m: height of the foot at mid swing.
      stance_fraction: share of a turn that a foot is down, 0.5 to 1.
    Source: MuJoCo Playground's G1 joystick task follows the gait phase with the foot's height.
    """
    margin = 0.5 * stance_fraction - 0.25
    total = 0.0
    for f in range(len(feet_pos_w) // 3):
        phase = gait_phase
        if f % 2 == 1:
            phase = phase - 0.5 if phase >= 0.5 else phase + 0.5
        if phase > margin and phase < 0.5 - margin:
            arc = math.sin(3.1415927 * (phase - margin) / (1.0 - stance_fraction))
            d = feet_pos_w[3 * f + 2] / height_m - arc
            total += d * d
    return total


@reward
def feet_apart(feet_pos_w, base_quat, min_m):
    """How much less than `min_m` the first foot is to the left of the second, m.

    Args:
      feet_pos_w: (3F,) m, world frame.
      base_quat: (4,) wxyz, base to world: its y axis points to the left.
      min_m: the distance that is wide enough; legs that cross are below zero.
    """
    w, x, y, z = base_quat[0], base_quat[1], base_quat[2], base_quat[3]
    left_x = 2.0 * (x * y - w * z)
    left_y = 1.0 - 2.0 * (x * x + z * z)
    left_z = 2.0 * (y * z + w * x)
    distance = (
        left_x * (feet_pos_w[0] - feet_pos_w[3])
        + left_y * (feet_pos_w[1] - feet_pos_w[4])
        + left_z * (feet_pos_w[2] - feet_pos_w[5])
    )
    return max(min_m - distance, 0.0)


@reward
def pole_upright(pole_angle):
    """Height of the pole's tip over the cart as a share of the pole's length: (1 + cos) / 2."""
    return 0.5 * (1.0 + math.cos(pole_angle))


@reward
def cart_centered(cart_pos, std):
    """Cart near the middle of the rail: exp(-x^2 / std^2), in [0, 1]; `std` in m."""
    return math.exp(-(cart_pos * cart_pos) / (std * std))


@reward
def effort(action):
    """Squared action, summed over the actuators."""
    total = 0.0
    for j in range(len(action)):
        total += action[j] * action[j]
    return total


@reward
def lin_vel_error(lin_vel_b, command):
    """Distance from the commanded planar velocity, m/s. With weight 0 it is a metric."""
    ex = command[0] - lin_vel_b[0]
    ey = command[1] - lin_vel_b[1]
    return math.sqrt(ex * ex + ey * ey)


@reward
def ang_vel_error(ang_vel_b, command):
    """Distance from the commanded yaw rate, rad/s. With weight 0 it is a metric."""
    return abs(command[2] - ang_vel_b[2])
