"""From an MJCF file and declared sensors to a checked, compiled robot.

Only MuJoCo's own compiler reads MJCF; every name, id, size and address below comes from the
compiled model. What is wrong with a user's file is said here, once, as a `ConfigError`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np

from unilab.config.terrain import TerrainConfig
from unilab.errors import ConfigError
from unilab.physics.actuators import (
    SUPPORTED_ACTUATORS,
    ActuatorRow,
    actuator_table,
    format_actuator_table,
)
from unilab.physics.base import F64, I32
from unilab.physics.contacts import ContactModel, restrict_collisions, set_contact_model
from unilab.physics.mjcf import compile_base, compile_spec, load_spec
from unilab.physics.names import ONE_DOF_JOINTS, find, name_of, one_dof_joint_names
from unilab.physics.randomize import check_randomization
from unilab.physics.sensors import (
    ContactSensorSpec,
    SensorSlice,
    SensorSpec,
    add_sensors,
    sensor_slices,
)
from unilab.physics.terrain import Terrain, add_terrain, check_colliders, read_terrain

# The one module of this room that tasks import: all that they need of it is named here.
__all__ = [
    "ActuatorRow",
    "ContactModel",
    "ContactSensorSpec",
    "Robot",
    "SensorSlice",
    "SensorSpec",
    "Terrain",
    "actuator_table",
    "check_randomization",
    "compile_robot",
    "format_actuator_table",
    "load_spec",
]

_FREE = int(mujoco.mjtJoint.mjJNT_FREE)  # a plain int, as in names


@dataclass(frozen=True)
class Robot:
    """A compiled model with everything a task asks of it by name.

    Attributes:
      model: the compiled model. Its sensordata holds the declared sensors and nothing else.
      path: the MJCF file.
      actuator_names: (A,) in ctrl order.
      joint_names: (A,) the joint that each actuator drives.
      root_joint: name of the free joint, None for a robot fixed to the world.
      sensors: name -> columns of sensordata.
      default_qpos: (nq,) f64 from the keyframe `home`, else qpos0. Read-only.
      terrain: the uneven ground in the place of the floor; None where there is none.
    """

    model: Any
    path: Path
    actuator_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    root_joint: str | None
    sensors: Mapping[str, SensorSlice]
    default_qpos: F64 = field(repr=False)
    terrain: Terrain | None = field(default=None, repr=False)

    def qpos_ids(self, joint_names: Sequence[str]) -> I32:
        """Return (n,) i32 addresses in qpos of 1-DoF joints. Raises ConfigError: unknown joint."""
        return self.model.jnt_qposadr[self._one_dof(joint_names)].astype(np.int32)  # type: ignore[no-any-return]

    def qvel_ids(self, joint_names: Sequence[str]) -> I32:
        """Return (n,) i32 addresses in qvel of 1-DoF joints. Raises ConfigError: unknown joint."""
        return self.model.jnt_dofadr[self._one_dof(joint_names)].astype(np.int32)  # type: ignore[no-any-return]

    def joint_ranges(self, joint_names: Sequence[str]) -> F64:
        """Return (n, 2) f64 limits in rad or m; (-inf, inf) where a joint has none."""
        ids = self._one_dof(joint_names)
        free = np.array([-np.inf, np.inf])
        return np.where(self.model.jnt_limited[ids, None] != 0, self.model.jnt_range[ids], free)

    def camera_id(self, name: str) -> int:
        """Return a camera's id. Raises ConfigError: no such camera."""
        return find(self.model, "camera", name, str(self.path))

    def actuator_table(self) -> tuple[ActuatorRow, ...]:
        """Return one row an actuator, in ctrl order."""
        return actuator_table(self.model)

    def require_ctrlrange(self) -> F64:
        """Return (A, 2) f64 ctrl ranges, for a task that derives its action scale from them.

        Raises:
          ConfigError: an actuator has no range, so the file does not say how much is full.
        """
        rows = self.actuator_table()
        bad = [r for r in rows if np.isinf(r.ctrl_range).any()]
        if bad:
            names = ", ".join(f"'{r.name}' ({r.kind} on joint '{r.joint}')" for r in bad)
            raise ConfigError(
                f"{self.path}: actuator {names} has no ctrlrange, so an action of 1 has no "
                f'meaning. Fix: give it one, e.g. ctrllimited="true" ctrlrange="-1 1".'
            )
        return np.array([r.ctrl_range for r in rows])

    def _one_dof(self, names: Sequence[str]) -> I32:
        ids = [find(self.model, "joint", name, str(self.path)) for name in names]
        for joint_id, name in zip(ids, names, strict=True):
            if self.model.jnt_type[joint_id] not in ONE_DOF_JOINTS:
                valid = ", ".join(one_dof_joint_names(self.model)) or "none"
                raise ConfigError(
                    f"{self.path}: joint '{name}' is not a hinge or slide joint, so it has no "
                    f"single position. Valid: {valid}."
                )
        return np.array(ids, np.int32)


def compile_robot(
    path: str | os.PathLike[str],
    *,
    sensors: Sequence[SensorSpec | ContactSensorSpec] = (),
    timestep_s: float | None = None,
    collision_geoms: Sequence[str] | None = None,
    contact: ContactModel | None = None,
    terrain: TerrainConfig | None = None,
    floor: str = "floor",
) -> Robot:
    """Compile an MJCF file with the sensors a task declares.

    Sensors written in the file are left out: sensordata holds what the task declares, in order.

    Args:
      path: the MJCF file.
      sensors: what the task reads besides qpos and qvel.
      timestep_s: solver step in s; None keeps the file's.
      collision_geoms: shell patterns of geom names. Only these geoms of the moving bodies collide
        (geoms fixed to the world always may); None keeps the file's.
      contact: cone and contact dimensions; None keeps the file's.
      terrain: uneven ground that takes the place of a geom; None, or without kinds: none.
      floor: name of that geom.

    Returns:
      The robot.

    Raises:
      ConfigError: see `load_spec`; a mesh not found; no moving body, no actuator or an unsupported
        one, two free joints, a keyframe of the wrong length; an unknown name in `sensors` or
        `collision_geoms`; an unknown name or an invalid value in `contact`; see `add_terrain`.
    """
    file = Path(path).expanduser().absolute()
    spec = load_spec(file)
    if timestep_s is not None:
        if not timestep_s > 0:
            raise ConfigError(f"{file}: timestep_s is {timestep_s}; it must be above 0.")
        spec.option.timestep = timestep_s
    ground = terrain if terrain is not None and terrain.kinds else None
    if ground is not None:
        add_terrain(spec, ground, floor, file)
    base = compile_base(spec, file)
    root_joint = _check_robot(base, file)
    if collision_geoms is not None:
        restrict_collisions(spec, base, collision_geoms, file)
    if contact is not None:
        set_contact_model(spec, contact, file)
    for old in list(spec.sensors):
        spec.delete(old)
    blocks = add_sensors(spec, base, sensors, file)
    model = compile_spec(spec, file)
    if ground is not None:
        check_colliders(model, ground, floor, file)
    rows = actuator_table(model)
    return Robot(
        model=model,
        path=file,
        actuator_names=tuple(row.name for row in rows),
        joint_names=tuple(row.joint for row in rows),
        root_joint=root_joint,
        sensors=MappingProxyType(sensor_slices(model, blocks)),
        default_qpos=_home_pose(model, file),
        terrain=None if ground is None else read_terrain(model, ground, floor),
    )


def _home_pose(model: Any, file: Path) -> F64:
    """Return qpos (nq,) f64 of the keyframe `home`, else qpos0; read-only."""
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    qpos = np.array(model.key_qpos[home] if home >= 0 else model.qpos0, np.float64)
    if not np.isfinite(qpos).all():
        raise ConfigError(f"{file}: the home pose holds a number that is not finite.")
    qpos.setflags(write=False)
    return qpos


def _check_robot(model: Any, file: Path) -> str | None:
    """Refuse what cannot be trained. Returns the free joint's name, if there is one."""
    if model.nv == 0:
        raise ConfigError(f"{file}: nothing in this model can move: it has no joint.")
    free = np.flatnonzero(model.jnt_type == _FREE)
    if len(free) > 1:
        names = " and ".join(
            f"'{name_of(model, 'joint', int(j))}' (body "
            f"'{name_of(model, 'body', int(model.jnt_bodyid[j]))}')"
            for j in free
        )
        raise ConfigError(
            f"{file}: {len(free)} free joints: {names}; one robot with at most one free joint is "
            f"valid. Fix: take the loose object out, or fix it to the world."
        )
    if model.nu == 0:
        raise ConfigError(
            f"{file}: the model has no actuator, so there is nothing to act on. Fix: add an "
            f"<actuator> section. Joints: {', '.join(one_dof_joint_names(model)) or 'none'}."
        )
    rows = actuator_table(model)
    bad = [row for row in rows if not row.supported]
    if bad:
        named = ", ".join(f"'{row.name}' ({row.kind})" for row in bad)
        raise ConfigError(
            f"{file}: actuator type not supported: {named}; valid: stateless "
            f"{', '.join(SUPPORTED_ACTUATORS)} on a hinge or slide joint. Found:\n"
            f"{format_actuator_table(rows)}"
        )
    return name_of(model, "joint", int(free[0])) if len(free) else None
