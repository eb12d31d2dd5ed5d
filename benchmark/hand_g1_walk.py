"""Phase A of the G1 task written by hand, as one does without an assembler: the yardstick.

The same maths, the same arrays and random numbers as the assembled kernel, but the joints are
walked once for all terms, the columns are literals, and common factors are shared.
"""

from __future__ import annotations

import math

from hand_random import FLAGS, between, f32, fold, high, low, stream, u64
from numba import njit

COMMAND, PUSH = stream("command/velocity"), stream("interval/push")
ANG_VEL, GRAVITY, JOINT_POS, JOINT_VEL = (
    stream(f"noise/observations.actor.{name}")
    for name in ("base_ang_vel", "gravity", "joint_pos_rel", "joint_velocity")
)
ZERO, QUARTER, HALF, ONE, TWO = f32(0.0), f32(0.25), f32(0.5), f32(1.0), f32(2.0)
PI, TURN = f32(3.1415927), f32(6.2831855)

# Where things are, as literals below: checked against the task.
FIELDS = {
    "joint_pos": tuple(range(8, 37)),
    "joint_vel": tuple(range(43, 72)),
    "feet_contact": (0, 1),
    "feet_pos_w": tuple(range(2, 8)),
    "feet_vel_w": tuple(range(8, 14)),
}
CARRIED = {
    "command": slice(87, 90),
    "command_timer": slice(90, 91),
    "fixed_command": slice(91, 95),
    "push_timer": slice(95, 96),
    "gait_phase": slice(96, 97),
}
SIZES = (98, 101)
TERMINATIONS = ("tilted", "base_low")

# Numbers of the config, in this order in `numbers`.
NUMBERS = (
    ("rewards", "track_lin_vel", "std"),
    ("rewards", "track_ang_vel", "std"),
    ("rewards", "base_height_low", "min_height_m"),
    ("rewards", "gait_contact", "stance_fraction"),
    ("rewards", "swing_height", "height_m"),
    ("rewards", "swing_height", "stance_fraction"),
    ("rewards", "feet_apart", "min_m"),
    ("terminations", "tilted", "limit_cos"),
    ("terminations", "base_low", "height_m"),
    ("commands", "velocity", "resample_min_s"),
    ("commands", "velocity", "resample_max_s"),
    ("commands", "velocity", "vx_min"),
    ("commands", "velocity", "vx_max"),
    ("commands", "velocity", "vy_min"),
    ("commands", "velocity", "vy_max"),
    ("commands", "velocity", "yaw_min"),
    ("commands", "velocity", "yaw_max"),
    ("commands", "velocity", "standing_fraction"),
    ("commands", "velocity", "turning_fraction"),
    ("commands", "gait", "frequency_hz"),
    ("commands", "gait", "threshold"),
    ("events", "push", "min_s"),
    ("events", "push", "max_s"),
    ("events", "push", "xy_ms"),
    ("events", "push", "yaw_rads"),
    ("observations.actor", "base_ang_vel", "noise"),
    ("observations.actor", "gravity", "noise"),
    ("observations.actor", "joint_pos_rel", "noise"),
    ("observations.actor", "joint_velocity", "noise"),
    ("observations.actor", "joint_velocity", "scale"),
    ("observations.critic", "joint_velocity", "scale"),
)
REWARDS = (
    *("track_lin_vel", "track_ang_vel", "alive", "lin_vel_z", "ang_vel_xy", "tilt"),
    *("base_height_low", "pose", "gait_contact", "swing_height", "feet_slip", "feet_apart"),
    *("action_rate", "torque", "joint_limits", "lin_vel_error", "ang_vel_error"),
)
JOINT_CONSTANTS = (
    *("default_joint_pos", "pose_weights", "soft_lower", "soft_upper"),
    *("kp", "kd", "effort_limit"),
)


@njit(nogil=True, **FLAGS)
def step(
    first_block, last_block, num_envs, state, sensor, failure, fields, steps, start_steps,
    episodes, returns, log, obs, critic, final_obs, final_critic, reward, terminated, truncated,
    push, pushed, weights, numbers, joints, dt, seed, max_steps,
):  # fmt: skip
    (
        lin_std, ang_std, min_height, stance, swing, swing_stance, min_apart, limit_cos,
        low_height, hold_min, hold_max, vx_min, vx_max, vy_min, vy_max, yaw_min, yaw_max,
        standing, turning, frequency, gait_gate, push_min, push_max, push_xy, push_yaw, n_ang,
        n_gravity, n_pos, n_vel, s_vel, s_critic_vel,
    ) = numbers  # fmt: skip
    default, pose_weight, lower, upper, kp, kd, effort = joints
    last = state.shape[1] - 1
    lin_scale, ang_scale = -ONE / (lin_std * lin_std), -ONE / (ang_std * ang_std)
    margin, swing_margin = HALF * stance - QUARTER, HALF * swing_stance - QUARTER
    for i in range(first_block * 64, min(last_block * 64, num_envs)):
        block = i // 64
        steps[i] += 1
        age = steps[i]
        if pushed[i] != 0:
            for j in range(35):
                push[i, j] = 0.0
        pushed[i] = 0
        fine = True
        for j in range(1, 72):
            fine = fine & (abs(state[i, last, j]) < 1e6)
        for j in range(14):
            fine = fine & (abs(sensor[i, last, j]) < 3.4e38)
        if failure[i] == 0 and not fine:
            failure[i] = 3
        if failure[i] != 0:
            reward[i] = 0.0
            terminated[i] = 1
            truncated[i] = 0
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 24 + failure[i]] += 1.0
            continue
        key = fold(fold(fold(seed[0], u64(i)), u64(episodes[i])), u64(age))

        # the base
        w, x = f32(state[i, last, 4]), f32(state[i, last, 5])
        y, z = f32(state[i, last, 6]), f32(state[i, last, 7])
        height = f32(state[i, last, 3])
        ux, uy = f32(state[i, last, 37]), f32(state[i, last, 38])
        uz = f32(state[i, last, 39])
        wx, wy = f32(state[i, last, 40]), f32(state[i, last, 41])
        wz = f32(state[i, last, 42])
        gx, gy = TWO * (w * y - x * z), -TWO * (w * x + y * z)
        gz = TWO * (x * x + y * y) - ONE
        tx, ty, tz = TWO * (z * uy - y * uz), TWO * (x * uz - z * ux), TWO * (y * ux - x * uy)
        vx = ux + w * tx + z * ty - y * tz
        vy = uy + w * ty + x * tz - z * tx
        vz = uz + w * tz + y * tx - x * ty
        fell, sank = -gz < limit_cos, height < low_height
        ended = fell or sank
        cut = age >= max_steps[0] and not ended
        ex, ey, ew = fields[i, 87] - vx, fields[i, 88] - vy, fields[i, 89] - wz
        error2 = ex * ex + ey * ey
        track_lin, track_ang = math.exp(error2 * lin_scale), math.exp(ew * ew * ang_scale)
        bounce, roll, tilt = vz * vz, wx * wx + wy * wy, gx * gx + gy * gy
        deep = max(min_height - height, ZERO)

        # the joints, once for all terms
        rate, pose, beyond, torque2 = ZERO, ZERO, ZERO, ZERO
        for j in range(29):
            q, qd = f32(state[i, last, 8 + j]), f32(state[i, last, 43 + j])
            d = q - default[j]
            critic[i, 9 + j] = d
            critic[i, 38 + j] = s_critic_vel * qd
            obs[i, 9 + j] = d
            obs[i, 38 + j] = qd
            obs[i, 67 + j] = fields[i, j]
            critic[i, 67 + j] = fields[i, j]
            pose += pose_weight[j] * d * d
            beyond += max(lower[j] - q, ZERO) + max(q - upper[j], ZERO)
            torque = kp[j] * (fields[i, 58 + j] - q) - kd[j] * qd
            torque = min(max(torque, -effort[j]), effort[j])
            torque2 += torque * torque
            change = fields[i, j] - fields[i, 29 + j]
            rate += change * change

        # the feet
        agree, slip, arc_error = ZERO, ZERO, ZERO
        phase = fields[i, 96]
        for f in range(2):
            touches = f32(sensor[i, last, f]) > ZERO
            if touches:
                sx, sy = f32(sensor[i, last, 8 + 3 * f]), f32(sensor[i, last, 9 + 3 * f])
                slip += sx * sx + sy * sy
            if (phase > margin and phase < HALF - margin) != touches:
                agree += ONE
            if phase > swing_margin and phase < HALF - swing_margin:
                arc = math.sin(PI * (phase - swing_margin) / (ONE - swing_stance))
                d = f32(sensor[i, last, 4 + 3 * f]) / swing - arc
                arc_error += d * d
            phase = phase - HALF if phase >= HALF else phase + HALF  # the other foot's
        apart = TWO * (x * y - w * z) * (f32(sensor[i, last, 2]) - f32(sensor[i, last, 5]))
        apart += (ONE - TWO * (x * x + z * z)) * (f32(sensor[i, last, 3]) - f32(sensor[i, last, 6]))
        apart += TWO * (y * z + w * x) * (f32(sensor[i, last, 4]) - f32(sensor[i, last, 7]))
        narrow = max(min_apart - apart, ZERO)
        off, turn_off = math.sqrt(error2), abs(ew)
        total = (
            weights[0] * track_lin + weights[1] * track_ang + weights[2] + weights[3] * bounce
            + weights[4] * roll + weights[5] * tilt + weights[6] * deep + weights[7] * pose
            + weights[8] * agree + weights[9] * arc_error + weights[10] * slip
            + weights[11] * narrow + weights[12] * rate + weights[13] * torque2
            + weights[14] * beyond + weights[15] * off + weights[16] * turn_off
        ) * dt  # fmt: skip

        # command, clock and push
        if fields[i, 91] > ZERO:
            fields[i, 87], fields[i, 88] = fields[i, 92], fields[i, 93]
            fields[i, 89] = fields[i, 94]
        else:
            fields[i, 90] -= dt
            if not fields[i, 90] > ZERO:
                own = fold(key, COMMAND)
                a, b, c = fold(own, u64(0)), fold(own, u64(1)), fold(own, u64(2))
                fields[i, 90] = between(high(a), hold_min, hold_max)
                regime = high(c)
                moves = regime >= standing + turning
                fields[i, 87] = between(low(a), vx_min, vx_max) if moves else ZERO
                fields[i, 88] = between(high(b), vy_min, vy_max) if moves else ZERO
                turns = regime >= standing
                fields[i, 89] = between(low(b), yaw_min, yaw_max) if turns else ZERO
        cx, cy, cw = fields[i, 87], fields[i, 88], fields[i, 89]
        stands = cx * cx + cy * cy + cw * cw < gait_gate * gait_gate
        before = fields[i, 96]
        if not stands or (before != ZERO and before != HALF):
            phase = before + frequency * dt
            if stands and before < HALF and phase > HALF:
                phase = HALF
            if phase >= ONE:
                phase = ZERO if stands else phase - ONE
            fields[i, 96] = phase
        fields[i, 95] -= dt
        if not fields[i, 95] > ZERO:
            own = fold(key, PUSH)
            a, b = fold(own, u64(0)), fold(own, u64(1))
            fields[i, 95] = between(high(a), push_min, push_max)
            push[i, 0] = between(low(a), -push_xy, push_xy)
            push[i, 1] = between(high(b), -push_xy, push_xy)
            push[i, 5] = between(high(fold(own, u64(3))), -push_yaw, push_yaw)
            pushed[i] = 1

        # observations
        angle = TURN * fields[i, 96]
        turn_x, turn_y = math.cos(angle), math.sin(angle)
        critic[i, 0], critic[i, 1], critic[i, 2] = wx, wy, wz
        critic[i, 3], critic[i, 4], critic[i, 5] = gx, gy, gz
        critic[i, 6], critic[i, 7], critic[i, 8] = cx, cy, cw
        critic[i, 96], critic[i, 97] = turn_x, turn_y
        critic[i, 98], critic[i, 99], critic[i, 100] = vx, vy, vz
        obs[i, 6], obs[i, 7], obs[i, 8] = cx, cy, cw
        obs[i, 96], obs[i, 97] = turn_x, turn_y
        own = fold(key, ANG_VEL)
        a, b = fold(own, u64(0)), fold(own, u64(1))
        obs[i, 0] = wx + n_ang * (TWO * high(a) - ONE)
        obs[i, 1] = wy + n_ang * (TWO * low(a) - ONE)
        obs[i, 2] = wz + n_ang * (TWO * high(b) - ONE)
        own = fold(key, GRAVITY)
        a, b = fold(own, u64(0)), fold(own, u64(1))
        obs[i, 3] = gx + n_gravity * (TWO * high(a) - ONE)
        obs[i, 4] = gy + n_gravity * (TWO * low(a) - ONE)
        obs[i, 5] = gz + n_gravity * (TWO * high(b) - ONE)
        own, other = fold(key, JOINT_POS), fold(key, JOINT_VEL)
        for j in range(14):
            a, b = fold(own, u64(j)), fold(other, u64(j))
            obs[i, 9 + 2 * j] += n_pos * (TWO * high(a) - ONE)
            obs[i, 10 + 2 * j] += n_pos * (TWO * low(a) - ONE)
            obs[i, 38 + 2 * j] = s_vel * (obs[i, 38 + 2 * j] + n_vel * (TWO * high(b) - ONE))
            obs[i, 39 + 2 * j] = s_vel * (obs[i, 39 + 2 * j] + n_vel * (TWO * low(b) - ONE))
        obs[i, 37] += n_pos * (TWO * high(fold(own, u64(14))) - ONE)
        obs[i, 66] = s_vel * (obs[i, 66] + n_vel * (TWO * high(fold(other, u64(14))) - ONE))

        # results
        fine = abs(total) < f32(3.4e38)
        for j in range(98):
            fine = fine & (abs(obs[i, j]) < f32(3.4e38))
        for j in range(101):
            fine = fine & (abs(critic[i, j]) < f32(3.4e38))
        if not fine:
            failure[i] = 5
            reward[i] = 0.0
            terminated[i] = 1
            truncated[i] = 0
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 29] += 1.0
            continue
        reward[i] = total
        returns[i] += total
        terminated[i] = 1 if ended else 0
        truncated[i] = 1 if cut else 0
        log[block, 0] += 1.0
        log[block, 1] += total
        log[block, 6] += track_lin
        log[block, 7] += track_ang
        log[block, 8] += 1.0
        log[block, 9] += bounce
        log[block, 10] += roll
        log[block, 11] += tilt
        log[block, 12] += deep
        log[block, 13] += pose
        log[block, 14] += agree
        log[block, 15] += arc_error
        log[block, 16] += slip
        log[block, 17] += narrow
        log[block, 18] += rate
        log[block, 19] += torque2
        log[block, 20] += beyond
        log[block, 21] += off
        log[block, 22] += turn_off
        if ended or cut:
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 2] += 1.0
            log[block, 3] += returns[i]
            log[block, 4] += age - start_steps[i]
            log[block, 5] += 1.0 if cut else 0.0
            log[block, 23] += 1.0 if fell else 0.0
            log[block, 24] += 1.0 if sank else 0.0
