"""Where a run computes: the learner's device, and the physics backend on it."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from unilab.config import RunConfig
from unilab.errors import ConfigError
from unilab.physics.base import Physics
from unilab.physics.contact_sizes import ContactSizes, measure_contacts
from unilab.physics.variants import Variants
from unilab.runtime.threads import PhysicsPlace
from unilab.tasks.base import BuiltTask
from unilab_kernels.jit import cache_dir


def choose_device(name: str) -> torch.device:
    """Return the learner's device; "auto" is CUDA where there is one.

    Raises:
      ConfigError: a device was asked for that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= found:
        raise ConfigError(
            f"device={name}: there is no such device ({found} CUDA device(s) found); use "
            "device=cpu, or device=auto for the best there is"
        )
    return torch.device(name)


def choose_backend(config: RunConfig, device: torch.device) -> str:
    """Return the name of the physics backend of a run.

    Raises:
      ConfigError: mujoco_warp was asked for and is not installed.
    """
    wanted = config.physics.backend
    if wanted == "mujoco_cpu" or (wanted == "auto" and device.type != "cuda"):
        return "mujoco_cpu"
    if find_spec("mujoco_warp") is not None:
        return "mujoco_warp"
    install = "install it with: pip install 'unilab-engine[warp]'"
    if wanted == "mujoco_warp":
        raise ConfigError(
            f"physics.backend=mujoco_warp: the package mujoco-warp is not installed; {install}, or "
            "use physics.backend=mujoco_cpu"
        )
    warnings.warn(
        f"physics runs on the CPU: mujoco-warp, which would use {device}, is missing; {install}",
        stacklevel=2,
    )
    return "mujoco_cpu"


def physics_place(config: RunConfig, device: torch.device) -> PhysicsPlace:
    """Return where a run's physics computes, for the thread plan."""
    if choose_backend(config, device) == "mujoco_cpu":
        return "cpu_threads"
    return "gpu" if device.type == "cuda" else "one_cpu_thread"


def make_warp(
    built: BuiltTask,
    groups: tuple[slice, ...],
    device: torch.device,
    num_envs: int,
    *,
    overlap: bool = False,
    **options: Any,
) -> Physics:
    """Build mujoco-warp physics of a task.

    Args:
      built: the task; sizes, graph and overflow are as its config says.
      groups: env range of each group.
      device: "cpu" or "cuda".
      num_envs: N.
      overlap: see `MujocoWarp`.
      options: of `MujocoWarp`, in place of the config's.

    Raises:
      ConfigError: see `MujocoWarp`; a size that would switch contacts off.
    """
    from unilab.physics.mujoco_warp import MujocoWarp  # imports Warp

    robot, settings = built.robot, built.config.physics
    takes_max = np.zeros(robot.model.nsensordata, bool)
    for sensor in robot.sensors.values():
        takes_max[sensor.start : sensor.stop] = sensor.reduce != "last"
    values = {
        "sizes": options.get("sizes") or _contact_sizes(built, options.get("variants")),
        "cuda_graph": settings.cuda_graph,
        "on_overflow": settings.on_overflow,
        "kernel_cache": cache_dir().parent / "warp",
    }
    return MujocoWarp(
        robot.model,
        num_envs=num_envs,
        groups=groups,
        substeps=settings.substeps,
        takes_max=takes_max,
        device=device,
        overlap=overlap,
        ctrl_steps=_ctrl_steps(built),
        **{**values, **options},
    )


def _ctrl_steps(built: BuiltTask) -> int:
    """Return how many different ctrl rows a control step has."""
    changes = built.config.randomization.action_delay.is_on
    return built.config.physics.substeps if changes else 1


def _contact_sizes(built: BuiltTask, variants: Variants | None) -> ContactSizes:
    """Return the sizes of the config, measured where they are auto."""
    settings = built.config.physics
    # Variants may have what the nominal model has not: friction in a joint is a constraint row.
    models = [built.robot.model] if variants is None else variants.models[:2]
    found = [measure_contacts(model, built.robot.default_qpos) for model in models]
    measured = ContactSizes(
        max(sizes.contacts for sizes in found), max(sizes.constraints for sizes in found)
    )
    contacts, constraints = settings.contacts_per_env, settings.constraints_per_env
    if contacts == 0 and measured.contacts:
        raise ConfigError(
            "physics.contacts_per_env=0 would let this robot fall through the floor: it has up to "
            f"{measured.contacts} contacts; give that many, or auto"
        )
    return ContactSizes(
        measured.contacts if contacts == "auto" else contacts,
        measured.constraints if constraints == "auto" else constraints,
    )
