"""The task for one env in NumPy, as users of Gymnasium write it: 98 observations, 15 rewards.

Formulas are those of the task's terms; the benchmark and a test compare the results.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from bundle import F64, Facts


class G1Terms:
    """Rewards, observations, terminations, commands and resets of one env.

    Args:
      facts: the task.
      generator: of everything that is drawn.

    Attributes:
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      phase: turns, in [0, 1), of the gait clock.
      resamples: False holds the command that is set.
    """

    def __init__(self, facts: Facts, generator: np.random.Generator) -> None:
        self.facts, self.generator = facts, generator
        arrays = facts.arrays
        self.joint_qpos, self.joint_qvel = arrays["joint_qpos_ids"], arrays["joint_qvel_ids"]
        # The joints are in order behind the free joint: a slice is cheaper than a list of indices.
        self.q = _as_slice(self.joint_qpos)
        self.v = _as_slice(self.joint_qvel)
        self.base_q, self.base_v = facts.qpos_start, facts.qvel_start
        self.default = arrays["default_joint_pos"]
        self.lower, self.upper = arrays["soft_lower"], arrays["soft_upper"]
        self.pose_weights = arrays["pose_weights"]
        self.kp, self.kd, self.effort = arrays["kp"], arrays["kd"], arrays["effort_limit"]
        self.sensors = {name: slice(*bounds) for name, bounds in facts.sensors.items()}
        self.reward_terms = [
            (getattr(self, f"_reward_{name}"), term["weight"], _parameters(term))
            for name, term in facts.rewards.items()
        ]
        self.noise, self.scale = facts.noise, facts.scale
        self.resamples = True
        self.command: F64 = np.zeros(3)
        self.phase = self.command_timer = self.push_timer = 0.0
        self.action: F64 = np.zeros(facts.num_actions)
        self.prev_action = self.action

    # -- one control step -----------------------------------------------------------------------

    def to_ctrl(self, action: Any) -> F64:
        """Take up the policy's action (A,) and return the servos' set-points (A,), rad."""
        limit = self.facts.action_clip
        self.prev_action, self.action = self.action, np.clip(action, -limit, limit)
        arrays = self.facts.arrays
        self.ctrl: F64 = arrays["ctrl_offset"] + arrays["ctrl_scale"] * self.action
        return self.ctrl

    def read(self, qpos: F64, qvel: F64, sensordata: F64) -> None:
        """Take what the terms read from the physics, and derive what several of them read."""
        p, v = self.base_q, self.base_v
        self.height = qpos[p + 2]
        self.quat = qpos[p + 3 : p + 7]
        self.ang_vel = qvel[v + 3 : v + 6]
        rotation = _rotation(self.quat)
        self.lin_vel = qvel[v : v + 3] @ rotation
        self.gravity = -rotation[2]
        self.left_w = rotation[:, 1]
        self.joint_pos, self.joint_vel = qpos[self.q], qvel[self.v]
        self.offset = self.joint_pos - self.default
        self.contact = sensordata[self.sensors["feet_contact"]] > 0.0
        self.feet_pos = sensordata[self.sensors["feet_pos_w"]].reshape(2, 3)
        self.feet_vel = sensordata[self.sensors["feet_vel_w"]].reshape(2, 3)

    def reward(self) -> float:
        """The step's reward: the weighted sum of the terms times the control step."""
        total = 0.0
        for term, weight, parameters in self.reward_terms:
            total += weight * term(**parameters)
        return float(total * self.facts.control_dt)

    def terminated(self) -> bool:
        """The episode ends as a failure."""
        ends = self.facts.terminations
        return bool(
            -self.gravity[2] < ends["tilted"]["limit_cos"]
            or self.height < ends["base_low"]["height_m"]
        )

    def observe(self) -> np.ndarray:
        """Return actor (98,) and critic observation (101,) in one (199,) f32 array."""
        angle = 2.0 * math.pi * self.phase
        clean = np.concatenate([
            self.ang_vel, self.gravity, self.command, self.offset, self.joint_vel, self.action,
            (math.cos(angle), math.sin(angle)),
        ])  # fmt: skip
        count = len(clean)
        out = np.empty(2 * count + 3, np.float32)
        velocity = slice(9 + len(self.offset), 9 + 2 * len(self.offset))
        noisy = clean.copy()
        for name, columns in (
            ("base_ang_vel", slice(0, 3)),
            ("gravity", slice(3, 6)),
            ("joint_pos_rel", slice(9, velocity.start)),
            ("joint_velocity", velocity),
        ):
            amplitude = self.noise[name]
            size = columns.stop - columns.start
            noisy[columns] += self.generator.uniform(-amplitude, amplitude, size)
        noisy[velocity] *= self.scale["joint_velocity"]
        clean[velocity] *= self.scale["joint_velocity"]
        out[:count], out[count : 2 * count], out[2 * count :] = noisy, clean, self.lin_vel
        return out

    # -- commands, pushes, resets ---------------------------------------------------------------

    def update_commands(self) -> None:
        """Draw a new command where its time is up; the gait clock runs on, or stops."""
        velocity, dt = self.facts.commands["velocity"], self.facts.control_dt
        if self.resamples:
            self.command_timer -= dt
            if self.command_timer <= 0.0:
                self._draw_command(velocity)
        gait = self.facts.commands["gait"]
        stands = float(self.command @ self.command) < gait["threshold"] ** 2
        if stands and self.phase in (0.0, 0.5):
            return
        before = self.phase
        phase = before + gait["frequency_hz"] * dt
        if stands and before < 0.5 < phase:
            phase = 0.5
        if phase >= 1.0:
            phase = 0.0 if stands else phase - 1.0
        self.phase = phase

    def push(self, qvel: F64) -> bool:
        """Add a push to the base's velocity in `qvel` where it is time; True where it was."""
        term = self.facts.events.get("push")
        if term is None:
            return False
        self.push_timer -= self.facts.control_dt
        if self.push_timer > 0.0:
            return False
        self.push_timer = self.generator.uniform(term["min_s"], term["max_s"])
        v, xy, yaw = self.base_v, term["xy_ms"], term["yaw_rads"]
        qvel[v : v + 2] += self.generator.uniform(-xy, xy, 2)
        qvel[v + 5] += self.generator.uniform(-yaw, yaw)
        return True

    def start(self, qvel_size: int) -> tuple[F64, F64]:
        """Begin an episode; return its qpos (nq,) and qvel (nv,)."""
        generator, p = self.generator, self.base_q
        base, joints = self.facts.events["reset_base"], self.facts.events["reset_joints"]
        qpos = self.facts.arrays["default_qpos"].copy()
        qpos[p : p + 2] += generator.uniform(-base["xy_m"], base["xy_m"], 2)
        qpos[p + 2] += generator.uniform(base["z_min_m"], base["z_max_m"])
        half = 0.5 * generator.uniform(-math.pi, math.pi)
        qpos[p + 3 : p + 7] = math.cos(half), 0.0, 0.0, math.sin(half)
        size = joints["pos_rad"]
        qpos[self.q] += generator.uniform(-size, size, len(self.default))
        self.action = np.zeros(self.facts.num_actions)
        self.prev_action = self.action
        self._draw_command(self.facts.commands["velocity"])
        push = self.facts.events.get("push")
        self.push_timer = generator.uniform(push["min_s"], push["max_s"]) if push else math.inf
        self.phase = generator.uniform()
        if float(self.command @ self.command) < self.facts.commands["gait"]["threshold"] ** 2:
            self.phase = 0.5 if self.phase >= 0.5 else 0.0
        return qpos, np.zeros(qvel_size)

    def _draw_command(self, term: dict[str, float]) -> None:
        draw = self.generator.uniform
        self.command_timer = draw(term["resample_min_s"], term["resample_max_s"])
        self.command = np.array([
            draw(term["vx_min"], term["vx_max"]),
            draw(term["vy_min"], term["vy_max"]),
            draw(term["yaw_min"], term["yaw_max"]),
        ])  # fmt: skip
        regime = draw()
        standing = term["standing_fraction"]
        turning = standing + term.get("turning_fraction", 0.0)
        if regime < standing:
            self.command[:] = 0.0
        elif regime < turning:
            self.command[:2] = 0.0
        elif regime < turning + term.get("forward_fraction", 0.0):
            self.command[1:] = 0.0

    # -- the 15 rewards -------------------------------------------------------------------------

    def _reward_track_lin_vel(self, std: float) -> float:
        ex, ey = self.command[0] - self.lin_vel[0], self.command[1] - self.lin_vel[1]
        return math.exp(-(ex * ex + ey * ey) / std**2)

    def _reward_track_ang_vel(self, std: float) -> float:
        return math.exp(-((self.command[2] - self.ang_vel[2]) ** 2) / std**2)

    def _reward_alive(self) -> float:
        return 1.0

    def _reward_lin_vel_z(self) -> float:
        return self.lin_vel[2] ** 2

    def _reward_ang_vel_xy(self) -> float:
        return self.ang_vel[0] ** 2 + self.ang_vel[1] ** 2

    def _reward_tilt(self) -> float:
        return self.gravity[0] ** 2 + self.gravity[1] ** 2

    def _reward_base_height_low(self, min_height_m: float) -> float:
        return max(min_height_m - self.height, 0.0)

    def _reward_pose(self) -> float:
        return float(self.pose_weights @ (self.offset * self.offset))

    def _reward_gait_contact(self, stance_fraction: float) -> float:
        margin = 0.5 * stance_fraction - 0.25
        total = 0.0
        for phase, down in zip(self._phases(), self.contact, strict=True):
            total += (margin < phase < 0.5 - margin) != down
        return total

    def _reward_swing_height(self, height_m: float, stance_fraction: float) -> float:
        margin = 0.5 * stance_fraction - 0.25
        total = 0.0
        for phase, z in zip(self._phases(), self.feet_pos[:, 2], strict=True):
            if margin < phase < 0.5 - margin:
                arc = math.sin(math.pi * (phase - margin) / (1.0 - stance_fraction))
                total += (z / height_m - arc) ** 2
        return total

    def _reward_feet_slip(self) -> float:
        planar = self.feet_vel[:, :2]
        return float(self.contact @ (planar * planar).sum(1))

    def _reward_feet_apart(self, min_m: float) -> float:
        return max(min_m - float(self.left_w @ (self.feet_pos[0] - self.feet_pos[1])), 0.0)

    def _reward_action_rate(self) -> float:
        change = self.action - self.prev_action
        return float(change @ change)

    def _reward_torque(self) -> float:
        torque = self.kp * (self.ctrl - self.joint_pos) - self.kd * self.joint_vel
        torque = np.minimum(np.maximum(torque, -self.effort), self.effort)
        return float(torque @ torque)

    def _reward_joint_limits(self) -> float:
        below, above = self.lower - self.joint_pos, self.joint_pos - self.upper
        return float(np.maximum(below, 0.0).sum() + np.maximum(above, 0.0).sum())

    def _phases(self) -> tuple[float, float]:
        """The clock of the left and of the right foot."""
        return self.phase, self.phase - 0.5 if self.phase >= 0.5 else self.phase + 0.5


def _rotation(quat: F64) -> F64:
    """Return the (3, 3) rotation from base to world of a quaternion wxyz."""
    w, x, y, z = quat.tolist()
    return np.array([
        (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
        (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)),
        (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)),
    ])  # fmt: skip


def _parameters(term: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in term.items() if name != "weight"}


def _as_slice(ids: Any) -> Any:
    first = int(ids[0])
    whole = np.array_equal(ids, np.arange(first, first + len(ids)))
    return slice(first, first + len(ids)) if whole else ids
