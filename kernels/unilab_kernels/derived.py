"""Derived fields: quantities of the state that several terms read, computed once a step."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from .rotations import rotate_inverse
from .terms import derived


@derived(size=3)
def projected_gravity(base_quat, out):
    """Direction of gravity in the base frame; (0, 0, -1) when upright.

    Args:
      base_quat: (4,) wxyz, base to world.
      out: (3,) unit vector.
    """
    rotate_inverse(base_quat, 0.0, 0.0, -1.0, out)


@derived(size=3)
def lin_vel_b(base_quat, base_lin_vel_w, out):
    """Linear velocity of the base origin in the base frame, m/s.

    Args:
      base_quat: (4,) wxyz, base to world.
      base_lin_vel_w: (3,) m/s in the world frame (MuJoCo's qvel[0:3] of a free joint).
      out: (3,) m/s.
    """
    rotate_inverse(base_quat, base_lin_vel_w[0], base_lin_vel_w[1], base_lin_vel_w[2], out)


@derived(size="joint_pos")
def joint_torque(joint_pos, joint_vel, ctrl, kp, kd, effort_limit, out):
    """Torque of the affine position servos, N m: clip(kp (target - q) - kd qdot).

    Args:
      joint_pos: (A,) rad.
      joint_vel: (A,) rad/s.
      ctrl: (A,) rad, the servo set-point.
      kp: (A,) N m/rad.
      kd: (A,) N m s/rad.
      effort_limit: (A,) N m.
      out: (A,) N m.
    """
    for j in range(len(out)):
        torque = kp[j] * (ctrl[j] - joint_pos[j]) - kd[j] * joint_vel[j]
        out[j] = min(max(torque, -effort_limit[j]), effort_limit[j])
