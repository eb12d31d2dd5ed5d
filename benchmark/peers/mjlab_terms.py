"""The task's terms for mjlab: those it does not have, written as its users write them, on torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from mjlab.envs import ManagerBasedRlEnv, mdp
from mjlab.managers.command_manager import CommandTerm, CommandTermCfg
from mjlab.managers.reward_manager import RewardTermCfg

SIDES = ("left", "right")


class GaitClock(CommandTerm):
    """A clock in turns; an episode begins at a random phase."""

    cfg: GaitClockCfg

    def __init__(self, cfg: GaitClockCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.phase = torch.zeros(self.num_envs, device=self.device)

    @property
    def command(self) -> torch.Tensor:
        """(N, 2) cosine and sine of the clock."""
        angle = 2.0 * math.pi * self.phase
        return torch.stack([angle.cos(), angle.sin()], dim=1)

    def _update_metrics(self) -> None:
        pass

    def _resample_command(self, env_ids: torch.Tensor) -> None:
        self.phase[env_ids] = torch.rand(len(env_ids), device=self.device)

    def _update_command(self, env_ids: torch.Tensor | None = None) -> None:
        if env_ids is None:
            self.phase = (self.phase + self.cfg.frequency_hz * self._env.step_dt) % 1.0


@dataclass(kw_only=True)
class GaitClockCfg(CommandTermCfg):
    """Settings of GaitClock."""

    frequency_hz: float = 1.5

    def build(self, env: ManagerBasedRlEnv) -> GaitClock:
        """Build the term."""
        return GaitClock(self, env)


def _command(env: Any) -> torch.Tensor:
    return env.command_manager.get_command("velocity")


def _feet(env: Any, sensor: str) -> torch.Tensor:
    """(N, 2, D) a sensor of both feet."""
    return torch.stack([env.scene[f"robot/{sensor}/{_foot(sensor, s)}"].data for s in SIDES], 1)


def _foot(sensor: str, side: str) -> str:
    return f"{side}_foot_collision" if sensor == "feet_contact" else f"{side}_foot"


def _phases(env: Any) -> torch.Tensor:
    """(N, 2) the clock of the left and of the right foot."""
    phase = env.command_manager.get_term("gait").phase
    return torch.stack([phase, (phase + 0.5) % 1.0], dim=1)


def _data(env: Any) -> Any:
    return env.scene["robot"].data


def track_lin_vel(env: Any, std: float) -> torch.Tensor:
    """Follow the planar velocity."""
    error = _command(env)[:, :2] - _data(env).root_link_lin_vel_b[:, :2]
    return torch.exp(-error.square().sum(1) / std**2)


def track_ang_vel(env: Any, std: float) -> torch.Tensor:
    """Follow the yaw rate."""
    error = _command(env)[:, 2] - _data(env).root_link_ang_vel_b[:, 2]
    return torch.exp(-error.square() / std**2)


def lin_vel_z(env: Any) -> torch.Tensor:
    """Squared vertical velocity."""
    return _data(env).root_link_lin_vel_b[:, 2].square()


def ang_vel_xy(env: Any) -> torch.Tensor:
    """Squared roll and pitch rate."""
    return _data(env).root_link_ang_vel_b[:, :2].square().sum(1)


def base_height_low(env: Any, min_height_m: float) -> torch.Tensor:
    """How far the base is below a height."""
    return (min_height_m - _data(env).root_link_pos_w[:, 2]).clamp(min=0.0)


class PoseReward:
    """Weighted squared distance from the default pose."""

    def __init__(self, cfg: RewardTermCfg, env: Any) -> None:
        self.weights = torch.tensor(cfg.params["weights"], device=env.device)

    def __call__(self, env: Any, weights: Any) -> torch.Tensor:
        """Evaluate; mjlab passes the parameters each time."""
        del weights
        data = _data(env)
        return ((data.joint_pos - data.default_joint_pos).square() * self.weights).sum(1)


def gait_contact(env: Any, stance_fraction: float) -> torch.Tensor:
    """How many feet touch the ground, or do not, as the clock asks."""
    margin, phases = 0.5 * stance_fraction - 0.25, _phases(env)
    swings = (phases > margin) & (phases < 0.5 - margin)
    return (swings != (_feet(env, "feet_contact")[..., 0] > 0)).float().sum(1)


def swing_height(env: Any, height_m: float, stance_fraction: float) -> torch.Tensor:
    """Swinging feet off an arc."""
    margin, phases = 0.5 * stance_fraction - 0.25, _phases(env)
    swings = (phases > margin) & (phases < 0.5 - margin)
    arc = torch.sin(math.pi * (phases - margin) / (1.0 - stance_fraction))
    error = (_feet(env, "feet_pos_w")[..., 2] / height_m - arc).square()
    return (error * swings).sum(1)


def feet_slip(env: Any) -> torch.Tensor:
    """Squared planar velocity of feet on the ground."""
    down = _feet(env, "feet_contact")[..., 0] > 0
    return (_feet(env, "feet_vel_w")[..., :2].square().sum(-1) * down).sum(1)


def feet_apart(env: Any, min_m: float) -> torch.Tensor:
    """How much less than min_m the left foot is to the left of the right one."""
    w, x, y, z = _data(env).root_link_quat_w.unbind(1)
    left = torch.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)], 1)
    feet = _feet(env, "feet_pos_w")
    return (min_m - (left * (feet[:, 0] - feet[:, 1])).sum(1)).clamp(min=0.0)


REWARDS: dict[str, Any] = {
    "track_lin_vel": track_lin_vel,
    "track_ang_vel": track_ang_vel,
    "alive": mdp.is_alive,
    "lin_vel_z": lin_vel_z,
    "ang_vel_xy": ang_vel_xy,
    "tilt": mdp.flat_orientation_l2,
    "base_height_low": base_height_low,
    "pose": PoseReward,
    "gait_contact": gait_contact,
    "swing_height": swing_height,
    "feet_slip": feet_slip,
    "feet_apart": feet_apart,
    "action_rate": mdp.action_rate_l2,
    "torque": mdp.joint_torques_l2,
    "joint_limits": mdp.joint_pos_limits,
}
