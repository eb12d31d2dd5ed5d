"""Command terms: run every step and at each reset; they resample what the policy is told to do."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from .rng import uniform, uniform01
from .terms import command


@command
def velocity(
    command_io,
    command_timer_io,
    fixed_command,
    fresh,
    key,
    control_dt,
    vx_min,
    vx_max,
    vy_min,
    vy_max,
    yaw_min,
    yaw_max,
    resample_min_s,
    resample_max_s,
    standing_fraction,
    turning_fraction=0.0,
    forward_fraction=0.0,
):
    """Velocity command (vx, vy, yaw rate), held for a random time and then drawn anew.

    Args:
      command_io: (3,) vx, vy in m/s, yaw rate in rad/s, base frame.
      command_timer_io: (1,) s left until the next draw.
      fixed_command: (4,) where [0] > 0 the command is [1:4] and nothing is drawn (evaluation).
      fresh: True on the first observation of an episode.
      key: random key.
      control_dt: s.
      vx_min, vx_max, vy_min, vy_max: m/s.
      yaw_min, yaw_max: rad/s.
      resample_min_s, resample_max_s: the command is held for a time drawn from this range.
      standing_fraction: share of draws that are "stand".
      turning_fraction: share of draws that turn on the spot.
      forward_fraction: share of draws with vy = yaw = 0.
    Source: ranges and shares after mjlab's velocity task.
    """
    if fixed_command[0] > 0.0:
        command_io[0] = fixed_command[1]
        command_io[1] = fixed_command[2]
        command_io[2] = fixed_command[3]
        return
    command_timer_io[0] -= control_dt
    if not fresh and command_timer_io[0] > 0.0:
        return
    command_timer_io[0] = uniform(key, 0, resample_min_s, resample_max_s)
    command_io[0] = uniform(key, 1, vx_min, vx_max)
    command_io[1] = uniform(key, 2, vy_min, vy_max)
    command_io[2] = uniform(key, 3, yaw_min, yaw_max)
    regime = uniform01(key, 4)
    if regime < standing_fraction:
        command_io[0] = 0.0
        command_io[1] = 0.0
        command_io[2] = 0.0
    elif regime < standing_fraction + turning_fraction:
        command_io[0] = 0.0
        command_io[1] = 0.0
    elif regime < standing_fraction + turning_fraction + forward_fraction:
        command_io[1] = 0.0
        command_io[2] = 0.0


@command
def gait(gait_phase_io, command, fresh, key, control_dt, frequency_hz, threshold):
    """Clock of a gait with two kinds of feet in antiphase: one swings in each half of a turn.

    An episode begins at a random phase. While told to stand, the clock runs on to the next half
    turn and stops there: both feet are down at 0 and at 0.5, so a robot ends its step and then
    stands, and nothing asks a standing robot to step on the spot.

    Args:
      gait_phase_io: (1,) turns, in [0, 1).
      command: (3,) vx, vy in m/s, yaw rate in rad/s; list this term after the one that draws it.
      fresh: True on the first observation of an episode.
      key: random key.
      control_dt: s.
      frequency_hz: turns a second, below half the control rate.
      threshold: |command| below it means standing.
    Source: clocks of 1.25 Hz (unitree_rl_gym) to 1.5 Hz (MuJoCo Playground's G1 joystick task).
    """
    norm2 = command[0] * command[0] + command[1] * command[1] + command[2] * command[2]
    stands = norm2 < threshold * threshold
    phase = gait_phase_io[0]
    if fresh:
        phase = uniform01(key, 0)
        if stands:
            phase = 0.5 if phase >= 0.5 else 0.0
    elif not stands or (phase != 0.0 and phase != 0.5):
        before = phase
        phase += frequency_hz * control_dt
        if stands and before < 0.5 and phase > 0.5:
            phase = 0.5
        if phase >= 1.0:
            phase = 0.0 if stands else phase - 1.0
    gait_phase_io[0] = phase
