"""Writes a task as a bundle that peers can read; see bundle.py. Runs where unilab is installed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from bundle import Facts

from unilab.config import load_config
from unilab.physics.contacts import restrict_collisions, set_contact_model
from unilab.physics.mjcf import compile_base, compile_spec, load_spec
from unilab.physics.sensors import add_sensors
from unilab.runners.build import make_pipeline
from unilab.runtime.threads import make_plan
from unilab.tasks.base import BuiltTask, build_task

CHECK_ENVS, CHECK_STEPS = 4, 20
CHECK_COMMAND = (0.5, 0.1, -0.3)  # vx, vy in m/s, yaw rate in rad/s
CHECK_ACTION_STD = 0.3


def write_bundle(task: str, overrides: list[str], folder: Path) -> Facts:
    """Write a task's bundle to `folder`."""
    built = build_task(load_config(task, overrides).config)
    model = built.robot.model
    mujoco.mj_saveModel(model, str(folder / "model.mjb"), None)
    (folder / "model.xml").write_text(_model_xml(built))
    constants = built.model.constants
    names = ("default_joint_pos", "soft_lower", "soft_upper", "pose_weights", "kp", "kd",
             "effort_limit")  # fmt: skip
    arrays = {name: np.asarray(constants[name], np.float64) for name in names}
    arrays["default_qpos"] = np.array(built.robot.default_qpos)
    arrays["joint_qpos_ids"] = built.robot.qpos_ids(built.robot.joint_names)
    arrays["joint_qvel_ids"] = built.robot.qvel_ids(built.robot.joint_names)
    arrays["ctrl_offset"], arrays["ctrl_scale"] = built.model.ctrl_offset, built.ctrl_scale
    config = built.config
    observed = config.observations.actor
    facts = Facts(
        folder=folder,
        substeps=config.physics.substeps,
        max_steps=built.max_steps,
        control_dt=built.control_dt,
        action_clip=float(config.actions.clip),
        rewards={n: v for n, v in _terms(config.rewards).items() if v["weight"] != 0.0},
        terminations=_terms(config.terminations),
        commands=_terms(config.commands),
        events=_terms(config.events),
        noise={n: float(t.get("noise", 0.0)) for n, t in observed.items()},
        scale={
            n: float(t.get("scale", 1.0))
            for n, t in {**config.observations.critic, **observed}.items()
        },
        qpos_start=int(constants["base_qpos_start"]),
        qvel_start=int(constants["base_qvel_start"]),
        sensors={name: [s.start, s.stop] for name, s in built.robot.sensors.items()},
        arrays=arrays,
    )
    plain = {f.name: getattr(facts, f.name) for f in dataclasses.fields(facts)}
    (folder / "facts.json").write_text(
        json.dumps({k: v for k, v in plain.items() if k not in ("folder", "arrays")}, indent=1)
    )
    np.savez(folder / "arrays.npz", **arrays)
    _write_check(task, overrides, folder)
    return facts


def _terms(block: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {name: {k: float(v) for k, v in term.items()} for name, term in block.items()}


def _model_xml(built: BuiltTask) -> str:
    """Return the task's model as MJCF: what `compile_robot` does to the file, then written.

    Raises:
      AssertionError: the written model does not step as the compiled one does.
    """
    task, robot = built.task, built.robot
    spec = load_spec(robot.path)
    spec.option.timestep = built.config.physics.timestep_s
    base = compile_base(spec, robot.path)
    if task.collision_geoms is not None:
        restrict_collisions(spec, base, task.collision_geoms, robot.path)
    if task.contact is not None:
        set_contact_model(spec, task.contact, robot.path)
    for old in list(spec.sensors):
        spec.delete(old)
    add_sensors(spec, base, task.sensors, robot.path)
    compile_spec(spec, robot.path)
    xml: str = spec.to_xml()
    written = mujoco.MjModel.from_xml_string(xml)
    states = [_fall(model, robot.default_qpos) for model in (robot.model, written)]
    difference = float(np.abs(states[0] - states[1]).max())
    assert difference < 1e-3, f"the exported model falls differently by {difference}"
    return xml


def _fall(model: Any, qpos: Any) -> Any:
    """Return positions and sensors of a robot without control after half a second."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_step(model, data, nstep=50)
    return np.concatenate([data.qpos, data.sensordata])


def _write_check(task: str, overrides: list[str], folder: Path) -> None:
    """Write steps of ours without noise, pushes or new commands, from known states."""
    quiet = _without_noise_and_pushes(task, overrides)
    config = load_config(task, [*overrides, *quiet]).config
    built = build_task(config)
    pipeline = make_pipeline(built, make_plan(config.runtime, CHECK_ENVS), seed=3,
                             num_envs=CHECK_ENVS)  # fmt: skip
    pipeline.reset(random_start=False)
    pipeline.field("command")[:] = CHECK_COMMAND
    pipeline.field("fixed_command")[:] = (1.0, *CHECK_COMMAND)
    start = {
        "qpos": pipeline.qpos().copy(),
        "qvel": pipeline.qvel().copy(),
        "phase": pipeline.field("gait_phase")[:, 0].copy(),
    }
    generator = np.random.default_rng(7)
    actions = CHECK_ACTION_STD * generator.standard_normal(
        (CHECK_STEPS, CHECK_ENVS, pipeline.num_actions)
    )
    steps: dict[str, list[Any]] = {"obs": [], "critic_obs": [], "reward": []}
    for action in actions.astype(np.float32):
        pipeline.submit(0, action)
        step = pipeline.finish(0)
        assert not len(step.done_ids), "the steps to check must not end an episode"
        for name, rows in steps.items():
            rows.append(getattr(step, name).copy())
    pipeline.close()
    np.savez(
        folder / "check.npz",
        command=np.array(CHECK_COMMAND),
        actions=actions.astype(np.float32),
        **start,
        **{name: np.stack(rows) for name, rows in steps.items()},
    )


def _without_noise_and_pushes(task: str, overrides: list[str]) -> list[str]:
    """Return the overrides that make a step a function of the state. No kernel is recompiled."""
    config = load_config(task, overrides).config
    noisy = [name for name, term in config.observations.actor.items() if term.get("noise", 0.0)]
    never = ["events.push.min_s=1e6", "events.push.max_s=1e6"] if "push" in config.events else []
    return [f"observations.actor.{name}.noise=0" for name in noisy] + never
