"""Observation terms. Each fills `out`; noise and scale are applied by the kernel afterwards."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

from .terms import observation


@observation(size=3)
def base_ang_vel(ang_vel_b, out):
    """Base angular velocity in the base frame, rad/s."""
    for j in range(3):
        out[j] = ang_vel_b[j]


@observation(size=3)
def base_lin_vel(lin_vel_b, out):
    """Base linear velocity in the base frame, m/s."""
    for j in range(3):
        out[j] = lin_vel_b[j]


@observation(size=3)
def gravity(projected_gravity, out):
    """Direction of gravity in the base frame."""
    for j in range(3):
        out[j] = projected_gravity[j]


@observation(size=3)
def velocity_command(command, out):
    """The command: vx, vy in m/s, yaw rate in rad/s."""
    for j in range(3):
        out[j] = command[j]


@observation(size="joint_pos")
def joint_pos_rel(joint_pos, default_joint_pos, out):
    """Joint positions minus the default pose (q - default_pose), rad."""
    for j in range(len(out)):
        out[j] = joint_pos[j] - default_joint_pos[j]


@observation(size="joint_vel")
def joint_velocity(joint_vel, out):
    """Joint velocities, rad/s."""
    for j in range(len(out)):
        out[j] = joint_vel[j]


@observation(size="action")
def last_action(action, out):
    """The clipped `action` output of the previous step; 0 at the start of an episode."""
    for j in range(len(out)):
        out[j] = action[j]


@observation(size="feet_contact")
def feet_contacts(feet_contact, out):
    """1 for each foot on the ground."""
    for f in range(len(out)):
        out[f] = 1.0 if feet_contact[f] > 0.0 else 0.0


@observation(size="feet_air_time")
def feet_air(feet_air_time, out):
    """Time in the air of each foot, s."""
    for f in range(len(out)):
        out[f] = feet_air_time[f]


@observation(size=2)
def gait_phase(gait_phase, out):
    """Cosine and sine of the gait clock: left and right swap roles where both change sign."""
    out[0] = math.cos(6.2831855 * gait_phase)
    out[1] = math.sin(6.2831855 * gait_phase)


@observation(size=1)
def base_height(base_pos, out):
    """Height of the base origin, m."""
    out[0] = base_pos[2]


@observation(size=2)
def cart_state(cart_pos, cart_vel, out):
    """Cart position in m and velocity in m/s."""
    out[0] = cart_pos
    out[1] = cart_vel


@observation(size=3)
def pole_state(pole_angle, pole_vel, out):
    """Cosine and sine of the pole's angle, and its rate in rad/s."""
    out[0] = math.cos(pole_angle)
    out[1] = math.sin(pole_angle)
    out[2] = pole_vel
