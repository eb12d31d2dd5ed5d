"""Phase A of the Go1 task written by hand, as one does without an assembler: the yardstick.

The same maths, the same arrays and random numbers as the assembled kernel, but the joints are
walked once for all terms, the columns are literals, and common factors are shared.
"""

from __future__ import annotations

import math

from hand_random import FLAGS, between, f32, fold, high, low, stream, u64
from numba import njit

COMMAND, PUSH = stream("command/velocity"), stream("interval/push")
LIN_VEL, ANG_VEL, GRAVITY, JOINT_POS, JOINT_VEL = (
    stream(f"noise/observations.actor.{name}")
    for name in ("base_lin_vel", "base_ang_vel", "gravity", "joint_pos_rel", "joint_velocity")
)
ONE, TWO, ZERO = f32(1.0), f32(2.0), f32(0.0)

# Where things are, as literals below: checked against the task.
FIELDS = {
    "joint_pos": tuple(range(8, 20)),
    "joint_vel": tuple(range(26, 38)),
    "feet_contact": tuple(range(4)),
    "feet_pos_w": tuple(range(4, 16)),
    "feet_vel_w": tuple(range(16, 28)),
}
CARRIED = {"command": slice(36, 39), "push_timer": slice(44, 45), "feet_air_time": slice(45, 49)}
SIZES = (48, 57)
TERMINATIONS = ("tilted", "base_low")

# Numbers of the config, in this order in `numbers_in`.
NUMBERS = (
    ("rewards", "track_lin_vel", "std"),
    ("rewards", "track_ang_vel", "std"),
    ("rewards", "base_height_low", "min_height_m"),
    ("rewards", "stand_still", "threshold"),
    ("rewards", "feet_air_time", "target_s"),
    ("rewards", "feet_air_time", "threshold"),
    ("rewards", "feet_clearance", "height_m"),
    ("rewards", "feet_clearance", "threshold"),
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
    ("events", "push", "min_s"),
    ("events", "push", "max_s"),
    ("events", "push", "xy_ms"),
    ("events", "push", "yaw_rads"),
    ("observations.actor", "base_lin_vel", "noise"),
    ("observations.actor", "base_ang_vel", "noise"),
    ("observations.actor", "gravity", "noise"),
    ("observations.actor", "joint_pos_rel", "noise"),
    ("observations.actor", "joint_velocity", "noise"),
    ("observations.actor", "joint_velocity", "scale"),
    ("observations.critic", "joint_velocity", "scale"),
)
REWARDS = (
    *("track_lin_vel", "track_ang_vel", "lin_vel_z", "ang_vel_xy", "tilt", "base_height_low"),
    *("action_rate", "pose", "stand_still", "joint_limits", "torque", "feet_air_time"),
    *("feet_slip", "feet_clearance", "lin_vel_error", "ang_vel_error"),
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
        lin_std, ang_std, min_height, still, air_target, air_gate, swing, swing_gate, limit_cos,
        low_height, hold_min, hold_max, vx_min, vx_max, vy_min, vy_max, yaw_min, yaw_max,
        standing, turning, push_min, push_max, push_xy, push_yaw, n_lin, n_ang, n_gravity,
        n_pos, n_vel, s_vel, s_critic_vel,
    ) = numbers  # fmt: skip
    default, pose_weight, lower, upper, kp, kd, effort = joints
    last = state.shape[1] - 1
    lin_scale, ang_scale = -ONE / (lin_std * lin_std), -ONE / (ang_std * ang_std)
    still2, air2, swing2 = still * still, air_gate * air_gate, swing_gate * swing_gate
    for i in range(first_block * 64, min(last_block * 64, num_envs)):
        block = i // 64
        steps[i] += 1
        age = steps[i]
        if pushed[i] != 0:
            for j in range(18):
                push[i, j] = 0.0
        pushed[i] = 0
        fine = True
        for j in range(1, 38):
            fine = fine & (abs(state[i, last, j]) < 1e6)
        for j in range(28):
            fine = fine & (abs(sensor[i, last, j]) < 3.4e38)
        if failure[i] == 0 and not fine:
            failure[i] = 3
        if failure[i] != 0:
            reward[i] = 0.0
            terminated[i] = 1
            truncated[i] = 0
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 23 + failure[i]] += 1.0
            continue
        key = fold(fold(fold(seed[0], u64(i)), u64(episodes[i])), u64(age))

        # the base
        w, x = f32(state[i, last, 4]), f32(state[i, last, 5])
        y, z = f32(state[i, last, 6]), f32(state[i, last, 7])
        height = f32(state[i, last, 3])
        ux, uy = f32(state[i, last, 20]), f32(state[i, last, 21])
        uz = f32(state[i, last, 22])
        wx, wy = f32(state[i, last, 23]), f32(state[i, last, 24])
        wz = f32(state[i, last, 25])
        gx, gy = TWO * (w * y - x * z), -TWO * (w * x + y * z)
        gz = TWO * (x * x + y * y) - ONE
        tx, ty, tz = TWO * (z * uy - y * uz), TWO * (x * uz - z * ux), TWO * (y * ux - x * uy)
        vx = ux + w * tx + z * ty - y * tz
        vy = uy + w * ty + x * tz - z * tx
        vz = uz + w * tz + y * tx - x * ty
        fell, sank = -gz < limit_cos, height < low_height
        ended = fell or sank
        cut = age >= max_steps[0] and not ended
        cx, cy, cw = fields[i, 36], fields[i, 37], fields[i, 38]
        ex, ey, ew = cx - vx, cy - vy, cw - wz
        speed2 = cx * cx + cy * cy + cw * cw
        error2 = ex * ex + ey * ey
        track_lin, track_ang = math.exp(error2 * lin_scale), math.exp(ew * ew * ang_scale)
        bounce, roll, tilt = vz * vz, wx * wx + wy * wy, gx * gx + gy * gy
        deep = max(min_height - height, ZERO)

        # the joints, once for all terms
        rate, pose, away, beyond, torque2 = ZERO, ZERO, ZERO, ZERO, ZERO
        for j in range(12):
            q, qd = f32(state[i, last, 8 + j]), f32(state[i, last, 26 + j])
            d = q - default[j]
            critic[i, 12 + j] = d
            critic[i, 24 + j] = s_critic_vel * qd
            obs[i, 12 + j] = d
            obs[i, 24 + j] = qd
            obs[i, 36 + j] = fields[i, j]
            critic[i, 36 + j] = fields[i, j]
            pose += pose_weight[j] * d * d
            away += abs(d)
            beyond += max(lower[j] - q, ZERO) + max(q - upper[j], ZERO)
            torque = kp[j] * (fields[i, 24 + j] - q) - kd[j] * qd
            torque = min(max(torque, -effort[j]), effort[j])
            torque2 += torque * torque
            change = fields[i, j] - fields[i, 12 + j]
            rate += change * change
        if speed2 >= still2:
            away = ZERO

        # the feet
        air, slip, wrong = ZERO, ZERO, ZERO
        for f in range(4):
            touches = f32(sensor[i, last, f]) > ZERO
            sx, sy = f32(sensor[i, last, 16 + 3 * f]), f32(sensor[i, last, 17 + 3 * f])
            s2 = sx * sx + sy * sy
            d = f32(sensor[i, last, 6 + 3 * f]) - swing
            wrong += d * d * math.sqrt(s2)
            before = fields[i, 45 + f]
            if touches:
                slip += s2
                if before > ZERO:
                    air += min(before - air_target, f32(0.5) * air_target)
                fields[i, 45 + f] = ZERO
            else:
                fields[i, 45 + f] = before + dt
            critic[i, 49 + f] = ONE if touches else ZERO
            critic[i, 53 + f] = fields[i, 45 + f]
        if speed2 < air2:
            air = ZERO
        if speed2 < swing2:
            wrong = ZERO
        off, turn_off = math.sqrt(error2), abs(ew)
        total = (
            weights[0] * track_lin + weights[1] * track_ang + weights[2] * bounce
            + weights[3] * roll + weights[4] * tilt + weights[5] * deep + weights[6] * rate
            + weights[7] * pose + weights[8] * away + weights[9] * beyond + weights[10] * torque2
            + weights[11] * air + weights[12] * slip + weights[13] * wrong + weights[14] * off
            + weights[15] * turn_off
        ) * dt  # fmt: skip

        # command and push
        if fields[i, 40] > ZERO:
            fields[i, 36], fields[i, 37], fields[i, 38] = (
                fields[i, 41],
                fields[i, 42],
                fields[i, 43],
            )
        else:
            fields[i, 39] -= dt
            if not fields[i, 39] > ZERO:
                own = fold(key, COMMAND)
                a, b, c = fold(own, u64(0)), fold(own, u64(1)), fold(own, u64(2))
                fields[i, 39] = between(high(a), hold_min, hold_max)
                regime = high(c)
                moves = regime >= standing + turning
                fields[i, 36] = between(low(a), vx_min, vx_max) if moves else ZERO
                fields[i, 37] = between(high(b), vy_min, vy_max) if moves else ZERO
                turns = regime >= standing
                fields[i, 38] = between(low(b), yaw_min, yaw_max) if turns else ZERO
        fields[i, 44] -= dt
        if not fields[i, 44] > ZERO:
            own = fold(key, PUSH)
            a, b = fold(own, u64(0)), fold(own, u64(1))
            fields[i, 44] = between(high(a), push_min, push_max)
            push[i, 0] = between(low(a), -push_xy, push_xy)
            push[i, 1] = between(high(b), -push_xy, push_xy)
            push[i, 5] = between(high(fold(own, u64(3))), -push_yaw, push_yaw)
            pushed[i] = 1

        # observations
        obs[i, 0], obs[i, 1], obs[i, 2] = vx, vy, vz
        obs[i, 3], obs[i, 4], obs[i, 5] = wx, wy, wz
        obs[i, 6], obs[i, 7], obs[i, 8] = gx, gy, gz
        for j in range(9):
            critic[i, j] = obs[i, j]
        for j in range(3):
            obs[i, 9 + j] = fields[i, 36 + j]
            critic[i, 9 + j] = fields[i, 36 + j]
        critic[i, 48] = height
        own = fold(key, LIN_VEL)
        a, b = fold(own, u64(0)), fold(own, u64(1))
        obs[i, 0] += n_lin * (TWO * high(a) - ONE)
        obs[i, 1] += n_lin * (TWO * low(a) - ONE)
        obs[i, 2] += n_lin * (TWO * high(b) - ONE)
        own = fold(key, ANG_VEL)
        a, b = fold(own, u64(0)), fold(own, u64(1))
        obs[i, 3] += n_ang * (TWO * high(a) - ONE)
        obs[i, 4] += n_ang * (TWO * low(a) - ONE)
        obs[i, 5] += n_ang * (TWO * high(b) - ONE)
        own = fold(key, GRAVITY)
        a, b = fold(own, u64(0)), fold(own, u64(1))
        obs[i, 6] += n_gravity * (TWO * high(a) - ONE)
        obs[i, 7] += n_gravity * (TWO * low(a) - ONE)
        obs[i, 8] += n_gravity * (TWO * high(b) - ONE)
        own, other = fold(key, JOINT_POS), fold(key, JOINT_VEL)
        for j in range(6):
            a, b = fold(own, u64(j)), fold(other, u64(j))
            obs[i, 12 + 2 * j] += n_pos * (TWO * high(a) - ONE)
            obs[i, 13 + 2 * j] += n_pos * (TWO * low(a) - ONE)
            obs[i, 24 + 2 * j] = s_vel * (obs[i, 24 + 2 * j] + n_vel * (TWO * high(b) - ONE))
            obs[i, 25 + 2 * j] = s_vel * (obs[i, 25 + 2 * j] + n_vel * (TWO * low(b) - ONE))

        # results
        fine = abs(total) < f32(3.4e38)
        for j in range(48):
            fine = fine & (abs(obs[i, j]) < f32(3.4e38))
        for j in range(57):
            fine = fine & (abs(critic[i, j]) < f32(3.4e38))
        if not fine:
            failure[i] = 5
            reward[i] = 0.0
            terminated[i] = 1
            truncated[i] = 0
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 28] += 1.0
            continue
        reward[i] = total
        returns[i] += total
        terminated[i] = 1 if ended else 0
        truncated[i] = 1 if cut else 0
        log[block, 0] += 1.0
        log[block, 1] += total
        log[block, 6] += track_lin
        log[block, 7] += track_ang
        log[block, 8] += bounce
        log[block, 9] += roll
        log[block, 10] += tilt
        log[block, 11] += deep
        log[block, 12] += rate
        log[block, 13] += pose
        log[block, 14] += away
        log[block, 15] += beyond
        log[block, 16] += torque2
        log[block, 17] += air
        log[block, 18] += slip
        log[block, 19] += wrong
        log[block, 20] += off
        log[block, 21] += turn_off
        if ended or cut:
            final_obs[i] = obs[i]
            final_critic[i] = critic[i]
            log[block, 2] += 1.0
            log[block, 3] += returns[i]
            log[block, 4] += age - start_steps[i]
            log[block, 5] += 1.0 if cut else 0.0
            log[block, 22] += 1.0 if fell else 0.0
            log[block, 23] += 1.0 if sank else 0.0
