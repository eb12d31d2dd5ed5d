"""`unilab export`: from a run to one ONNX file that a robot can run, with its contract inside."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unilab.config import task_label
from unilab.errors import ConfigError
from unilab.export import ExportMetadata, ObservationPart, export_policy, require_export_packages
from unilab.physics.model import Robot
from unilab.runners.build import compile_kernels, make_pipeline
from unilab.runners.restore import RestoredPolicy, restore_policy
from unilab.runtime.threads import make_side_plan
from unilab.tasks.base import BuiltTask
from unilab_kernels import terms
from unilab_kernels.spec import ObservationSlice

EXPORT_FILE = "policy.onnx"
# Episodes whose first observations the file is compared on.
RESETS = 64


def export_run(run_dir: Path, checkpoint: Path, output: Path | None) -> int:
    """Export a checkpoint, compare the file with the live policy, and say how well it agrees.

    Args:
      run_dir: the run.
      checkpoint: the file.
      output: where to write; None is inside the run.

    Returns:
      0.

    Raises:
      ConfigError: a package is missing, or the checkpoint does not fit the run.
      ExportError: the file disagrees with the policy; nothing is left behind.
    """
    require_export_packages()
    policy = restore_policy(run_dir, checkpoint, [])
    built = policy.built
    path = output or run_dir / EXPORT_FILE
    observations = first_observations(built, RESETS)
    try:
        report = export_policy(
            policy.learner.policy_module().cpu(),
            obs_dim=built.kernel.num_obs,
            ctrl_scale=built.ctrl_scale.astype(np.float32),
            ctrl_offset=built.model.ctrl_offset.astype(np.float32),
            action_clip=built.config.actions.clip,
            metadata=describe(policy),
            path=path,
            observations=observations,
        )
    except OSError as error:
        raise ConfigError(
            f"--output: {path} cannot be written: {error.strerror or error}; give a file in a "
            "folder you may write to, such as --output policy.onnx"
        ) from error
    print(  # noqa: T201
        f"exported {checkpoint}\n      to {report.path}\n"
        f"checked with onnxruntime on {report.num_observations} observations: action differs by "
        f"at most {report.max_error_action:.1e}, ctrl by {report.max_error_ctrl:.1e}"
    )
    return 0


def first_observations(built: BuiltTask, count: int) -> NDArray[np.float32]:
    """Return the first observations (count, O) f32 of as many episodes, as the policy gets them."""
    plan = make_side_plan(built.config.runtime, count)
    pipeline = make_pipeline(built, plan, seed=0, num_envs=count)
    try:
        compile_kernels(pipeline)
        pipeline.reset()
        return pipeline.observe(0)[0].copy()
    finally:
        pipeline.close()


def describe(policy: RestoredPolicy) -> ExportMetadata:
    """Collect what a runner on the robot must know: joints, actuators, observation layout."""
    built = policy.built
    robot, config = built.robot, built.config
    rows, terrain = robot.actuator_table(), robot.terrain
    pose = robot.default_qpos[robot.qpos_ids(robot.joint_names)]
    return ExportMetadata(
        task=task_label(config.task),
        joint_names=robot.joint_names,
        default_pose=pose.tolist(),
        actuator_type=[row.kind for row in rows],
        kp=[row.kp for row in rows],
        kd=[row.kd for row in rows],
        gear=[row.gear for row in rows],
        effort_limit=effort_limits(robot),
        observation_layout=[_part(part) for part in built.kernel.actor_layout],
        control_dt_s=built.control_dt,
        extra={
            "iteration": policy.progress.iteration,
            "env_steps": policy.progress.env_steps,
            "seed": config.seed,
            "commands": {name: dict(term) for name, term in config.commands.items()},
            "unilab_version": _version(),
            **({} if terrain is None else {"height_scan_points_m": terrain.scan_points.T.tolist()}),
        },
    )


def effort_limits(robot: Robot) -> list[float | None]:
    """Return the largest torque in N m (force in N) on each actuated joint; None: not limited.

    The smaller of the actuator's forcerange times its gear and the joint's actuatorfrcrange; of a
    lopsided range the smaller side.
    """
    limits = []
    for row in robot.actuator_table():
        joint = robot.model.joint(row.joint)
        limit = abs(row.gear) * min(-row.force_range[0], row.force_range[1])
        if robot.model.jnt_actfrclimited[joint.id]:
            low, high = robot.model.jnt_actfrcrange[joint.id]
            limit = min(limit, float(-low), float(high))
        limits.append(limit if np.isfinite(limit) else None)
    return limits


def _part(part: ObservationSlice) -> ObservationPart:
    term = terms.find("observation", part.name)
    assert term is not None  # the kernel was built from it
    noise = part.noise * part.scale
    return ObservationPart(part.name, part.start, part.stop, term.summary, part.scale, noise)


def _version() -> str:
    try:
        return version("unilab-engine")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
