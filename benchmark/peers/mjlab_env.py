"""Peer: mjlab's manager-based env on Warp's CPU device, with the task in mjlab's own terms.

Runs in an interpreter with `mjlab`; prints one JSON object as its last line. Kernels that Warp has
not compiled yet are compiled before the clock starts; how long that took is reported.

    python mjlab_env.py BUNDLE --mode env --num-envs 128

Terms that mjlab has are used as they are; the rest is written as its users write them. Two things
differ from ours because mjlab has no counterpart: no share of the commands turns on the spot, and
the gait clock never stops. Neither costs anything.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import mujoco
import numpy as np
import torch
from bundle import ACTION_ROWS, Facts, draw_actions
from mjlab.actuator import XmlActuatorCfg
from mjlab.entity import EntityArticulationInfoCfg, EntityCfg
from mjlab.envs import ManagerBasedRlEnv, ManagerBasedRlEnvCfg, mdp
from mjlab.envs.mdp.actions import JointPositionActionCfg
from mjlab.managers.command_manager import CommandTermCfg
from mjlab.managers.event_manager import EventTermCfg
from mjlab.managers.observation_manager import ObservationGroupCfg, ObservationTermCfg
from mjlab.managers.reward_manager import RewardTermCfg
from mjlab.managers.termination_manager import TerminationTermCfg
from mjlab.scene import SceneCfg
from mjlab.sim import MujocoCfg, SimulationCfg
from mjlab.tasks.velocity.mdp import UniformVelocityCommandCfg
from mjlab.utils.noise import UniformNoiseCfg
from mjlab_terms import REWARDS, GaitClockCfg

MODES = ("env", "check")
CONTACTS, CONSTRAINTS = 24, 128  # per world: room for feet on the floor and on each other


def make_env(facts: Facts, num_envs: int, *, noise: bool = True) -> ManagerBasedRlEnv:
    """Build the task as mjlab's env."""
    spec = _spec(facts)
    joints = [actuator.target for actuator in spec.actuators]
    start = facts.arrays["default_qpos"][facts.qpos_start :].tolist()
    default = facts.arrays["default_joint_pos"].tolist()
    robot = EntityCfg(
        spec_fn=lambda: _spec(facts),
        init_state=EntityCfg.InitialStateCfg(
            pos=tuple(start[:3]),
            rot=tuple(start[3:7]),
            joint_pos=dict(zip(joints, default, strict=True)),
        ),
        articulation=EntityArticulationInfoCfg(
            actuators=(XmlActuatorCfg(target_names_expr=(".*",)),), soft_joint_pos_limit_factor=0.9
        ),
    )
    scale = dict(zip(joints, facts.arrays["ctrl_scale"].tolist(), strict=True))
    action = JointPositionActionCfg(entity_name="robot", actuator_names=(".*",), scale=scale)
    option = spec.option
    config = ManagerBasedRlEnvCfg(
        decimation=facts.substeps,
        scene=SceneCfg(num_envs=num_envs, entities={"robot": robot}),
        sim=SimulationCfg(
            nconmax=CONTACTS,
            njmax=CONSTRAINTS,
            mujoco=MujocoCfg(
                timestep=option.timestep,
                iterations=option.iterations,
                ls_iterations=option.ls_iterations,
                tolerance=option.tolerance,
            ),
        ),
        observations=_observations(facts, noise),
        actions={"joints": action},
        commands=_commands(facts),
        events=_events(facts, pushes=noise),
        rewards=_rewards(facts),
        terminations=_terminations(facts),
        episode_length_s=facts.max_steps * facts.control_dt,
        seed=1,
    )
    return ManagerBasedRlEnv(config, device="cpu")


def _spec(facts: Facts) -> Any:
    """Read the exported model; its start is given to mjlab by joint, not by keyframe."""
    spec = mujoco.MjSpec.from_file(str(facts.folder / "model.xml"))
    for key in list(spec.keys):
        spec.delete(key)
    return spec


def _observations(facts: Facts, noise: bool) -> dict[str, ObservationGroupCfg]:
    sources: dict[str, tuple[Any, dict[str, Any]]] = {
        "base_ang_vel": (mdp.base_ang_vel, {}),
        "gravity": (mdp.projected_gravity, {}),
        "velocity_command": (mdp.generated_commands, {"command_name": "velocity"}),
        "joint_pos_rel": (mdp.joint_pos_rel, {}),
        "joint_velocity": (mdp.joint_vel_rel, {}),
        "last_action": (mdp.last_action, {}),
        "gait_phase": (mdp.generated_commands, {"command_name": "gait"}),
    }

    def terms(names: list[str], *, corrupt: bool) -> dict[str, ObservationTermCfg]:
        result = {}
        for name in names:
            func, params = sources[name]
            size, scale = facts.noise.get(name, 0.0), facts.scale[name]
            uniform = UniformNoiseCfg(n_min=-size, n_max=size) if corrupt and size else None
            result[name] = ObservationTermCfg(
                func=func, params=params, noise=uniform, scale=None if scale == 1.0 else scale
            )
        return result

    actor = list(sources)
    sources["base_lin_vel"] = (mdp.base_lin_vel, {})
    return {
        "actor": ObservationGroupCfg(terms=terms(actor, corrupt=noise), enable_corruption=noise),
        "critic": ObservationGroupCfg(terms=terms([*actor, "base_lin_vel"], corrupt=False)),
    }


def _commands(facts: Facts) -> dict[str, CommandTermCfg]:
    term = facts.commands["velocity"]
    return {
        "velocity": UniformVelocityCommandCfg(
            entity_name="robot",
            resampling_time_range=(term["resample_min_s"], term["resample_max_s"]),
            rel_standing_envs=term["standing_fraction"],
            rel_heading_envs=0.0,
            ranges=UniformVelocityCommandCfg.Ranges(
                lin_vel_x=(term["vx_min"], term["vx_max"]),
                lin_vel_y=(term["vy_min"], term["vy_max"]),
                ang_vel_z=(term["yaw_min"], term["yaw_max"]),
            ),
        ),
        "gait": GaitClockCfg(
            resampling_time_range=(1e9, 1e9), frequency_hz=facts.commands["gait"]["frequency_hz"]
        ),
    }


def _events(facts: Facts, *, pushes: bool) -> dict[str, EventTermCfg]:
    base, joints = facts.events["reset_base"], facts.events["reset_joints"]
    xy, angle = (-base["xy_m"], base["xy_m"]), joints["pos_rad"]
    pose = {"x": xy, "y": xy, "z": (base["z_min_m"], base["z_max_m"]), "yaw": (-math.pi, math.pi)}
    events = {
        "base": EventTermCfg(
            func=mdp.reset_root_state_uniform,
            mode="reset",
            params={"pose_range": pose, "velocity_range": {}},
        ),
        "joints": EventTermCfg(
            func=mdp.reset_joints_by_offset,
            mode="reset",
            params={"position_range": (-angle, angle), "velocity_range": (0.0, 0.0)},
        ),
    }
    push = facts.events.get("push")
    if push is not None and pushes:
        planar, yaw = (-push["xy_ms"], push["xy_ms"]), (-push["yaw_rads"], push["yaw_rads"])
        events["push"] = EventTermCfg(
            func=mdp.push_by_setting_velocity,
            mode="interval",
            interval_range_s=(push["min_s"], push["max_s"]),
            params={"velocity_range": {"x": planar, "y": planar, "yaw": yaw}},
        )
    return events


def _rewards(facts: Facts) -> dict[str, RewardTermCfg]:
    terms = {}
    for name, given in facts.rewards.items():
        params: dict[str, Any] = {k: v for k, v in given.items() if k != "weight"}
        if name == "pose":
            params["weights"] = facts.arrays["pose_weights"].astype(np.float32)
        terms[name] = RewardTermCfg(func=REWARDS[name], weight=given["weight"], params=params)
    return terms


def _terminations(facts: Facts) -> dict[str, TerminationTermCfg]:
    ends = facts.terminations
    return {
        "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
        "tilted": TerminationTermCfg(
            func=mdp.bad_orientation,
            params={"limit_angle": math.acos(ends["tilted"]["limit_cos"])},
        ),
        "base_low": TerminationTermCfg(
            func=mdp.root_height_below_minimum,
            params={"minimum_height": ends["base_low"]["height_m"]},
        ),
    }


# -- measuring ------------------------------------------------------------------------------------


def check(folder: Path) -> dict[str, float]:
    """Repeat the bundle's first step; return the largest differences of observations and rewards.

    mjlab keeps states in float32, and its rewards read velocities of the substep before.
    """
    facts = Facts.read(folder)
    with np.load(facts.folder / "check.npz") as file:
        ours = {name: file[name] for name in file.files}
    env = make_env(facts, len(ours["qpos"]), noise=False)
    env.reset()
    data = env.sim.data
    data.qpos[:] = torch.as_tensor(ours["qpos"], dtype=torch.float32)
    data.qvel[:] = torch.as_tensor(ours["qvel"], dtype=torch.float32)
    env.command_manager.get_command("velocity")[:] = torch.as_tensor(
        ours["command"], dtype=torch.float32
    )
    env.command_manager.get_term("velocity").is_standing_env[:] = False
    env.command_manager.get_term("gait").phase[:] = torch.as_tensor(ours["phase"])
    env.sim.forward()
    observation, reward, *_ = env.step(torch.as_tensor(ours["actions"][0]))
    pairs = {
        "obs": (observation["actor"], ours["obs"][0]),
        "critic_obs": (observation["critic"], ours["critic_obs"][0]),
        "reward": (reward, ours["reward"][0]),
    }
    return {name: float(np.abs(a.numpy() - b).max()) for name, (a, b) in pairs.items()}


def measure(folder: Path, num_envs: int, warmup: int, seconds: float) -> dict[str, Any]:
    """Step the env for some seconds, then its simulation alone; return env-steps/s of both."""
    facts = Facts.read(folder)
    begin = perf_counter()
    env = make_env(facts, num_envs)
    env.reset()
    actions = torch.as_tensor(draw_actions(num_envs, facts.num_actions))
    env.step(actions[0])
    start_s = perf_counter() - begin
    for t in range(warmup):
        env.step(actions[t % ACTION_ROWS])
    ended = steps = 0
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = env.step(actions[steps % ACTION_ROWS])
        ended += int((terminated | truncated).sum())
        steps += 1
    count, elapsed = steps * num_envs, perf_counter() - begin
    return {
        "steps_per_s": count / elapsed,
        "ended_share": ended / count,
        "simulation_steps_per_s": simulation_rate(env, facts.substeps, seconds),
        "start_s": start_s,
    }


def simulation_rate(env: ManagerBasedRlEnv, substeps: int, seconds: float) -> float:
    """Env-steps/s of the simulation without actions, observations, rewards and resets."""
    steps, begin = 0, perf_counter()
    while perf_counter() - begin < seconds:
        for _ in range(substeps):
            env.sim.step()
        steps += 1
    return steps * env.num_envs / (perf_counter() - begin)


def main() -> None:
    """Measure one mode and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--mode", choices=MODES, default="env")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=20, help="control steps")
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    if given.mode == "check":
        result: dict[str, Any] = check(given.bundle)
    else:
        result = measure(given.bundle, given.num_envs, given.warmup, given.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
