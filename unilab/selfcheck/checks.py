"""What must hold before a figure of this machine means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import mujoco
import numpy as np
import torch

from unilab.buffers.rollout import Rollout
from unilab.config.randomization import RandomizationConfig
from unilab.physics.base import FROZEN
from unilab.physics.randomize import make_variants
from unilab.runners.build import make_learner, make_pipeline
from unilab.runners.on_policy import collect, set_first
from unilab.runtime.threads import ThreadPlan
from unilab.selfcheck import parity
from unilab.tasks.base import BuiltTask

NUM_STATES, NUM_STEPS = 50, 20
# Everything of a model that can be drawn, as a task would.
RANDOMIZATION = {
    "startup_variants": 8,
    "reset_variants": 4,
    "body_mass": {"scale": (0.8, 1.2)},
    "body_com": {"add_x_m": (-0.02, 0.02), "add_z_m": (-0.02, 0.02)},
    "geom_friction": {"slide": (0.4, 1.2)},
    "actuator_gains": {"kp_scale": (0.9, 1.1), "kd_scale": (0.9, 1.1), "mode": "reset"},
    "joint_armature": {"scale": (0.8, 1.2)},
    "joint_friction": {"add_nm": (0.0, 0.1)},
    "joint_damping": {"add_nms": (0.0, 0.1)},
    "gravity": {"add_ms2": (-0.3, 0.3), "mode": "reset"},
    "actuator_strength": {"scale": (0.05, 0.5)},  # so that it is felt in small motions
}
Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Found:
    """What a check found.

    Attributes:
      outcome: "not run" where this machine lacks what it is about.
      detail: one line.
      figures: numbers for the record.
    """

    outcome: Outcome
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict)


Check = Callable[[BuiltTask, torch.device], Found]


def _found(holds: bool, detail: str, **figures: float) -> Found:
    return Found("passed" if holds else "failed", detail, figures)


def against_mujoco_c(built: BuiltTask, device: torch.device) -> Found:
    """20 control steps from reset states end where MuJoCo C ends."""
    states = parity.reset_states(built, NUM_STATES)
    wanted = parity.end_positions(parity.on_cpu, built, *states, NUM_STEPS)
    found = parity.end_positions(parity.on_warp(device), built, *states, NUM_STEPS)
    worst = float(parity.relative_errors(found, wanted).max())
    limit = parity.RESET_LIMIT
    return _found(worst <= limit, f"worst error {worst:.1e} (limit {limit:.0e})", worst=worst)


def against_mujoco_c_on_the_ground(built: BuiltTask, device: torch.device) -> Found:
    """20 control steps of robots that lie on the ground end where MuJoCo C ends."""
    whole = parity.all_collide(built)
    states = parity.fallen_states(whole, NUM_STATES)
    wanted = parity.end_positions(parity.on_cpu, whole, *states, NUM_STEPS)
    found = parity.end_positions(parity.on_warp(device), whole, *states, NUM_STEPS)
    errors = parity.relative_errors(found, wanted)
    median, share = float(np.median(errors)), float(np.mean(errors <= parity.RESET_LIMIT))
    return _found(
        median <= parity.FALLEN_MEDIAN and share >= parity.FALLEN_SHARE,
        f"median error {median:.1e} (limit {parity.FALLEN_MEDIAN:.0e}), {100 * share:.0f} % within "
        f"{parity.RESET_LIMIT:.0e} (at least {100 * parity.FALLEN_SHARE:.0f} %)",
        median=median,
        share_within=share,
    )


def graph_against_eager(built: BuiltTask, device: torch.device) -> Found:
    """The recorded graph ends where its kernels, launched one by one, end."""
    states = parity.reset_states(built, NUM_STATES)
    ends = [
        parity.end_positions(parity.on_warp(device, cuda_graph=graph), built, *states, 5)
        for graph in ("on", "off")
    ]
    worst = float(parity.relative_errors(*ends).max())
    limit = 0.0 if device.type == "cpu" else 1e-4  # on a GPU sums come in any order
    return _found(worst <= limit, f"worst difference {worst:.1e} (limit {limit:.0e})", worst=worst)


def resets(built: BuiltTask, device: torch.device) -> Found:
    """A reset changes its rows only; its sensors are MuJoCo C's of the new state."""
    qpos, qvel = parity.reset_states(built, 4)
    with parity.opened(parity.on_warp(device)(built, 4)) as made:
        made.write_state(np.arange(4, dtype=np.int32), qpos, qvel)
        rest = np.array(built.model.ctrl_offset)[None, None]
        parity.step(made, np.repeat(rest[0], 4, axis=0))
        state, sensors = made.state.copy(), made.sensors.copy()
        made.write_state(np.array([2], np.int32), qpos[:1], qvel[:1])
        made.reset_sensors(np.array([2], np.int32), rest)
        others = [0, 1, 3]
        same = np.array_equal(made.state[others], state[others])
        same &= np.array_equal(made.sensors[others], sensors[others])
        data = mujoco.MjData(built.robot.model)
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos[0], qvel[0], rest[0, 0]
        mujoco.mj_forward(built.robot.model, data)
        close = np.allclose(made.sensors[2, -1], data.sensordata, rtol=1e-3, atol=1e-3)
        # The next step starts from the new state, on the device too.
        parity.step(made, np.repeat(rest[0], 4, axis=0))
        error = float(np.abs(made.state[2, -1, 1:] - state[0, -1, 1:]).max())
    return _found(
        bool(same and close and error < 1e-3),
        f"other rows {'untouched' if same else 'CHANGED'}, sensors "
        f"{'as mj_forward' if close else 'DIFFER from mj_forward'}, next step off by {error:.0e}",
    )


def randomization(built: BuiltTask, device: torch.device) -> Found:
    """Envs of different models end where MuJoCo C ends with the same models."""
    block = RandomizationConfig.model_validate(RANDOMIZATION)
    variants = make_variants(built.robot.model, block, seed=5)
    assert variants is not None
    qpos, qvel = parity.reset_states(built, NUM_STATES)
    ids, ends = np.arange(NUM_STATES, dtype=np.int32), []
    for make in (
        partial(parity.on_cpu, variants=variants),
        parity.on_warp(device, variants=variants),
    ):
        with parity.opened(make(built, NUM_STATES)) as made:
            made.set_variants(ids, ids % len(variants.models))
            made.write_state(ids, qpos, qvel)
            for k in range(NUM_STEPS):
                parity.step(made, parity.waves(built, NUM_STATES, k))
            ends.append(np.array(made.state[:, -1, 1 : 1 + built.robot.model.nq], np.float64))
    errors = parity.relative_errors(ends[1], ends[0])
    plain = parity.end_positions(parity.on_cpu, built, qpos, qvel, NUM_STEPS)
    differ = float(np.median(parity.relative_errors(ends[0], plain)))
    worst, limit = float(errors.max()), parity.RESET_LIMIT
    return _found(
        worst <= limit < differ,
        f"worst error {worst:.1e} (limit {limit:.0e}) over {len(variants.models)} models that move "
        f"a robot by {differ:.0e}; drawn: {', '.join(variants.entries)}",
        worst=worst,
    )


def overflow(built: BuiltTask, device: torch.device) -> Found:
    """An env that asks for more constraints than fit is named, with the key to raise."""
    room = replace(parity.room(built), constraints=2)
    qpos = np.tile(built.robot.default_qpos, (4, 1))
    qpos[[0, 1, 3], 2] += 1.0
    with parity.opened(parity.on_warp(device, sizes=room)(built, 4)) as made:
        made.write_state(np.arange(4, dtype=np.int32), qpos, np.zeros((4, built.robot.model.nv)))
        made.ctrl[:] = built.model.ctrl_offset
        view = made.wait(made.submit(0, made.ctrl))
        told = " ".join(made.events(0))
        failed = view.failures.tolist()
    holds = failed[2] == FROZEN and "physics.constraints_per_env" in told
    return _found(holds, told or f"nothing was told; failures {failed}")


def no_host_sync(built: BuiltTask, device: torch.device) -> Found:
    """In steady state the host waits for events and for nothing else of the device."""
    if device.type != "cuda":
        return Found("not run", "needs a CUDA GPU: torch's sync debug mode is about CUDA")
    num_envs, steps = 1024, 24
    pipeline = make_pipeline(built, ThreadPlan(2, 1, 1, 1, 2, True, 1), seed=1, num_envs=num_envs)
    kernel = built.kernel
    rollout = Rollout(
        steps, num_envs, kernel.num_obs, kernel.num_critic_obs, pipeline.num_actions, device
    )
    learner = make_learner(built, built.config, device, 1)
    try:
        pipeline.reset()
        set_first(pipeline, rollout)
        collect(pipeline, learner.act, rollout)
        rollout.carry_over()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            collect(pipeline, learner.act, rollout)
        except RuntimeError as error:
            return Found("failed", str(error).strip().splitlines()[0])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    finally:
        pipeline.close()
    return Found("passed", f"{steps} control steps of {num_envs} envs, none")


def overlap_changes_nothing(built: BuiltTask, device: torch.device) -> Found:
    """The same actions give the same transitions with overlap on and off."""
    num_envs, steps, found = 256, 10, []
    for overlap in (False, True):
        plan = ThreadPlan(2, 1, 1, 1, 2, overlap, 1)
        pipeline = make_pipeline(built, plan, seed=1, num_envs=num_envs)
        try:
            pipeline.reset(random_start=False)
            for k in range(steps):
                for group, envs in enumerate(pipeline.groups):
                    phase = 0.3 * k + np.arange(envs.start, envs.stop)[:, None]
                    action = 0.5 * np.sin(phase + np.arange(pipeline.num_actions))
                    pipeline.submit(group, action.astype(np.float32))
                for group in range(len(pipeline.groups)):
                    pipeline.finish(group)
            found.append(np.array(pipeline.qpos(), np.float64))
        finally:
            pipeline.close()
    worst = float(parity.relative_errors(*found).max())
    limit = 0.0 if device.type == "cpu" else 1e-3
    return _found(worst <= limit, f"worst difference {worst:.1e} (limit {limit:.0e})", worst=worst)


CHECKS: dict[str, Check] = {
    "as MuJoCo C, from reset states": against_mujoco_c,
    "as MuJoCo C, lying on the ground": against_mujoco_c_on_the_ground,
    "graph as eager": graph_against_eager,
    "resets": resets,
    "randomization": randomization,
    "overflow": overflow,
    "overlap on as off": overlap_changes_nothing,
    "no host sync in steady state": no_host_sync,
}
