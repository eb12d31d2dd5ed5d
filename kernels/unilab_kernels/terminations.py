"""Termination terms. Each returns True where the episode ends as a failure.

The time limit is not among them: it belongs to the episode (``episode.length_s``) and truncates.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from .terms import termination


@termination
def tilted(projected_gravity, limit_cos):
    """The base is tilted beyond the angle whose cosine is `limit_cos`."""
    return -projected_gravity[2] < limit_cos


@termination
def base_low(base_pos, height_m):
    """The base origin is lower than `height_m`."""
    return base_pos[2] < height_m


@termination
def cart_out(cart_pos, limit_m):
    """The cart is further than `limit_m` from the middle of the rail."""
    return abs(cart_pos) > limit_m


@termination
def pole_fallen(pole_angle, limit_rad):
    """The pole is further than `limit_rad` from upright."""
    return abs(pole_angle) > limit_rad
