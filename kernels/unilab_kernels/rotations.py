"""Rotations with unit quaternions in wxyz order, scalar code for one environment."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations


def rotate_inverse(quat, x, y, z, out):
    """Rotate the world vector (x, y, z) into the frame of `quat`: out = R(quat)^T v.

    Args:
      quat: (4,) unit quaternion wxyz, body to world.
      x, y, z: the vector in the world frame.
      out: (3,) the vector in the body frame.
    """
    w, a, b, c = quat[0], quat[1], quat[2], quat[3]
    # t = 2 * cross(-u, v); v' = v + w t + cross(-u, t), with u = (a, b, c)
    tx = 2.0 * (c * y - b * z)
    ty = 2.0 * (a * z - c * x)
    tz = 2.0 * (b * x - a * y)
    out[0] = x + w * tx + (c * ty - b * tz)
    out[1] = y + w * ty + (a * tz - c * tx)
    out[2] = z + w * tz + (b * tx - a * ty)
