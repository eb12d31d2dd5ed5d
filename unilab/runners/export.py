"""`unilab export`: from a run to one ONNX file that a robot can run, with its contract inside."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np

from unilab.errors import ConfigError
from unilab.export import ExportMetadata, ObservationSlice, export_policy, require_export_packages
from unilab.runners.restore import RestoredPolicy, restore_policy

EXPORT_FILE = "policy.onnx"


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
    try:
        report = export_policy(
            policy.learner.policy_module().cpu(),
            obs_dim=built.kernel.num_obs,
            ctrl_scale=built.ctrl_scale.astype(np.float32),
            ctrl_offset=built.model.ctrl_offset.astype(np.float32),
            action_clip=built.config.actions.clip,
            metadata=describe(policy),
            path=path,
        )
    except OSError as error:
        raise ConfigError(
            f"--output: {path} cannot be written: {error.strerror or error}; give a file in a "
            "folder you may write to, such as --output policy.onnx"
        ) from error
    print(  # noqa: T201
        f"exported {checkpoint}\n      to {report.path}\n"
        f"checked with onnxruntime: action differs by at most {report.max_error_action:.1e}, "
        f"ctrl by {report.max_error_ctrl:.1e}"
    )
    return 0


def describe(policy: RestoredPolicy) -> ExportMetadata:
    """Collect what a runner on the robot must know: joints, gains, observation layout."""
    built = policy.built
    robot, config = built.robot, built.config
    rows = robot.actuator_table()
    pose = robot.default_qpos[robot.qpos_ids(robot.joint_names)]
    return ExportMetadata(
        task=config.task,
        joint_names=robot.joint_names,
        default_pose=pose.tolist(),
        kp=[row.kp for row in rows],
        kd=[row.kd for row in rows],
        observation_layout=[
            ObservationSlice(p.name, p.start, p.stop, scale=p.scale, noise=p.noise * p.scale)
            for p in built.kernel.actor_layout
        ],
        control_dt_s=built.control_dt,
        extra={
            "iteration": policy.progress.iteration,
            "env_steps": policy.progress.env_steps,
            "seed": config.seed,
            "commands": {name: dict(term) for name, term in config.commands.items()},
            "unilab_version": version("unilab-engine"),
        },
    )
