"""What a task is: a robot, what its terms may read, and how an action becomes ctrl."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

import unilab_kernels.commands
import unilab_kernels.derived
import unilab_kernels.events
import unilab_kernels.observations
import unilab_kernels.rewards
import unilab_kernels.terminations
import unilab_kernels.terrain  # noqa: F401  (these imports register the term library)
from unilab.config import RunConfig, list_tasks
from unilab.errors import ConfigError, nearest
from unilab.physics.model import (
    ContactModel,
    ContactSensorSpec,
    Robot,
    SensorSpec,
    check_randomization,
    compile_robot,
)
from unilab.tasks.hardware import make_hardware
from unilab_kernels.fuse import FusedKernel, assemble
from unilab_kernels.spec import CarriedField, KernelSpec, StateField
from unilab_kernels.terms import TermError

ASSETS = Path(__file__).resolve().parent.parent / "assets"
F64 = NDArray[np.float64]
SPAWN = "terrain_spawn"


@dataclass(frozen=True)
class MirrorSpec:
    """Left-right symmetry of a vector: mirrored = vector[perm] * sign.

    Attributes:
      perm: (n,) i64.
      sign: (n,) f32, +1 or -1.
    """

    perm: NDArray[np.int64]
    sign: NDArray[np.float32]


@dataclass(frozen=True)
class TaskModel:
    """What a task's terms may read, and its action map, for one compiled robot.

    Attributes:
      fields: name -> where it is read from the physics.
      constants: name -> number or (size,) array, from the model.
      carried: name -> field carried between steps.
      ctrl_offset: (A,) ctrl = offset + scale * action, in the unit of the actuator.
      ctrl_scale: (A,).
      mirrors: name of an observation term, or "action" -> its mirror; empty: no symmetry.
      logged: carried fields of one number whose mean over the envs is logged, as curriculum/NAME.
    """

    fields: Mapping[str, StateField]
    constants: Mapping[str, float | NDArray[np.floating]]
    ctrl_offset: F64
    ctrl_scale: F64
    carried: Mapping[str, CarriedField] = field(default_factory=dict)
    mirrors: Mapping[str, MirrorSpec] = field(default_factory=dict)
    logged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A task: everything that is not a number in its YAML.

    Attributes:
      robot: MJCF file, a name in `unilab/assets` or a path.
      describe: from the compiled robot to what the terms may read.
      sensors: MuJoCo sensors that the task reads.
      collision_geoms: patterns of the geoms that may collide; None keeps the file's choice.
      contact: how contacts are modelled; None keeps the file's choice.
      camera: the camera of the video; None: the one named `track`, else one that follows.
      floor: the geom whose place the config's terrain takes.
    """

    robot: str | Path
    describe: Callable[[Robot], TaskModel]
    sensors: Sequence[SensorSpec | ContactSensorSpec] = ()
    collision_geoms: Sequence[str] | None = None
    contact: ContactModel | None = None
    camera: str | None = None
    floor: str = "floor"


@dataclass(frozen=True)
class BuiltTask:
    """A task for one config: compiled robot, terms fused (not compiled yet).

    Attributes:
      control_dt: s.
      max_steps: control steps of a full episode.
    """

    task: Task
    config: RunConfig
    robot: Robot
    model: TaskModel
    kernel: FusedKernel
    control_dt: float
    max_steps: int

    @property
    def ctrl_scale(self) -> F64:
        """(A,) the task's action scale times the config's."""
        return self.model.ctrl_scale * self.config.actions.scale


def load_task(name: str) -> Task:
    """Import a task by name or by the path of its .py file.

    Raises:
      ConfigError: no such task, or the file does not define ``TASK``.
    """
    if name.endswith(".py"):
        module = _import_file(Path(name))
    else:
        names = [info.name for info in list_tasks()]
        if name not in names:
            raise ConfigError(f"unknown task '{name}'; {nearest(name, names)}")
        module = import_module(f"unilab.tasks.{name}")
    task = getattr(module, "TASK", None)
    if not isinstance(task, Task):
        raise ConfigError(f"{name}: a task file must define TASK = Task(...); it defines none")
    return task


def build_task(config: RunConfig) -> BuiltTask:
    """Compile the robot and fuse the terms of a config.

    Raises:
      ConfigError: the model, a term or a parameter is not right.
    """
    task = load_task(config.task)
    physics = config.physics
    path = Path(physics.model) if physics.model else _robot_path(task, config.task)
    robot = compile_robot(
        path,
        sensors=task.sensors,
        timestep_s=physics.timestep_s,
        collision_geoms=task.collision_geoms,
        contact=task.contact,
        terrain=config.terrain,
        floor=task.floor,
    )
    if task.camera is not None:
        robot.camera_id(task.camera)  # refused here, not when the video is made
    model = _describe(task, robot, config)
    _check_numbers(config)
    check_randomization(robot.model, config.randomization)
    _check_terrain(config)
    control_dt = physics.timestep_s * physics.substeps
    spec = KernelSpec(
        name=Path(config.task).stem,
        num_actions=int(robot.model.nu),
        qpos_column=1,
        nq=int(robot.model.nq),
        qvel_column=1 + int(robot.model.nq),
        nv=int(robot.model.nv),
        state_fields=model.fields,
        carried_fields=model.carried,
        constants={
            **model.constants,
            "control_dt": control_dt,
            "episode_length_s": config.episode.length_s,
        },
        actor=config.observations.actor,
        critic=config.observations.critic,
        rewards=config.rewards,
        terminations=config.terminations,
        commands=config.commands,
        events=config.events,
        hardware=make_hardware(config, robot, model.fields),
    )
    try:
        kernel = assemble(spec)
    except TermError as error:
        raise ConfigError(f"task '{config.task}': {error}") from error
    max_steps = max(1, round(config.episode.length_s / control_dt))
    return BuiltTask(task, config, robot, model, kernel, control_dt, max_steps)


def _describe(task: Task, robot: Robot, config: RunConfig) -> TaskModel:
    try:
        return task.describe(robot)
    except (LookupError, ValueError, StopIteration) as error:
        if config.physics.model is None:
            raise  # the task's own robot: a mistake in the task
        raise ConfigError(
            f"physics.model={config.physics.model}: task '{config.task}' cannot use this robot "
            f"({type(error).__name__}: {error}); it has the joints {', '.join(robot.joint_names)}; "
            "give a robot with the names that the task looks for, or write a task for this one"
        ) from error


def _check_numbers(config: RunConfig) -> None:
    """Weight, noise and scale are one number each, whatever else a term takes."""
    for block, terms in (
        ("rewards", config.rewards),
        ("observations.actor", config.observations.actor),
        ("observations.critic", config.observations.critic),
    ):
        for name, given in terms.items():
            for key in ("weight", "noise", "scale"):
                value = given.get(key)
                if isinstance(value, tuple):
                    raise ConfigError(f"{block}.{name}.{key}: got {list(value)}; valid: one number")


def _check_terrain(config: RunConfig) -> None:
    """Without the event that puts robots onto tiles, all would begin where four of them meet."""
    if config.terrain.kinds and SPAWN not in config.events:
        raise ConfigError(
            f"terrain.kinds: task '{config.task}' has no event that begins episodes on its tiles; "
            f"add {SPAWN} to events, after reset_base, or set terrain.kinds=[]"
        )


# -- helpers for task files ---------------------------------------------------------------------


def root_fields(robot: Robot) -> dict[str, StateField]:
    """Fields of a free base: base_pos, base_quat (wxyz), base_lin_vel_w, ang_vel_b.

    Raises:
      ConfigError: the robot has no free joint.
    """
    qpos, qvel = root_starts(robot)
    first_v = 1 + int(robot.model.nq) + qvel
    return {
        "base_pos": StateField(_range(1 + qpos, 3)),
        "base_quat": StateField(_range(1 + qpos + 3, 4)),
        "base_lin_vel_w": StateField(_range(first_v, 3)),
        "ang_vel_b": StateField(_range(first_v + 3, 3)),
    }


def root_starts(robot: Robot) -> tuple[int, int]:
    """Return where the free joint starts in qpos and in qvel.

    Raises:
      ConfigError: the robot has no free joint.
    """
    if robot.root_joint is None:
        raise ConfigError(f"{robot.path}: this task needs a robot with a free joint; it has none")
    joint = robot.model.joint(robot.root_joint)
    return int(joint.qposadr[0]), int(joint.dofadr[0])


def joint_fields(robot: Robot) -> dict[str, StateField]:
    """Fields of the actuated joints in actuator order: joint_pos (A,), joint_vel (A,)."""
    qpos = robot.qpos_ids(robot.joint_names)
    qvel = robot.qvel_ids(robot.joint_names)
    return {
        "joint_pos": StateField(tuple(1 + int(i) for i in qpos)),
        "joint_vel": StateField(tuple(1 + int(robot.model.nq) + int(i) for i in qvel)),
    }


def sensor_field(robot: Robot, name: str, *, scalar: bool = False) -> StateField:
    """Field of a declared sensor.

    Raises:
      ConfigError: the task declares no such sensor.
    """
    if name not in robot.sensors:
        raise ConfigError(f"the task declares no sensor '{name}'; {nearest(name, robot.sensors)}")
    where = robot.sensors[name]
    columns = _range(where.start, where.stop - where.start)
    return StateField(columns, source="sensor", reduce=where.reduce, scalar=scalar)


def joint_constants(robot: Robot, *, soft_fraction: float = 0.9) -> dict[str, F64]:
    """Constants of the actuated joints: default_joint_pos, soft_lower, soft_upper, indices, gains.

    Args:
      robot: the compiled robot.
      soft_fraction: soft limits are the middle +- this share of half the range; (-inf, inf) for a
        joint without limits.
    """
    names = robot.joint_names
    ids = robot.qpos_ids(names)
    ranges = robot.joint_ranges(names)
    limited = np.isfinite(ranges).all(axis=1)
    ranges[~limited] = 0.0
    middle, half = ranges.mean(axis=1), 0.5 * soft_fraction * (ranges[:, 1] - ranges[:, 0])
    half[~limited] = np.inf
    rows = robot.actuator_table()
    return {
        "default_joint_pos": robot.default_qpos[ids],
        "soft_lower": middle - half,
        "soft_upper": middle + half,
        "joint_qpos_ids": ids.astype(np.float64),
        "joint_qvel_ids": robot.qvel_ids(names).astype(np.float64),
        "kp": np.array([row.kp for row in rows]),
        "kd": np.array([row.kd for row in rows]),
        "effort_limit": np.array([row.force_range[1] for row in rows]),
    }


def require_actuated(robot: Robot, joint_names: Sequence[str]) -> None:
    """Check that the actuators drive exactly these joints, in this order.

    Raises:
      ConfigError: names the first joint that no actuator drives, or that one drives besides.
    """
    driven, wanted = robot.joint_names, tuple(joint_names)
    for name in wanted:
        if name not in driven:
            raise ConfigError(
                f"{robot.path}: no actuator drives the joint '{name}'; driven: {', '.join(driven)}"
            )
    if driven != wanted:
        raise ConfigError(
            f"{robot.path}: the actuators drive {', '.join(driven)}; this task needs exactly: "
            f"{', '.join(wanted)}"
        )


def ctrl_range_map(robot: Robot) -> tuple[F64, F64]:
    """Return ctrl_offset (A,) and ctrl_scale (A,) by which an action of +-1 is full ctrl.

    Raises:
      ConfigError: an actuator has no ctrlrange.
    """
    ranges = robot.require_ctrlrange()
    return ranges.mean(axis=1), 0.5 * (ranges[:, 1] - ranges[:, 0])


def servo_scale(robot: Robot, effort_share: float) -> F64:
    """Return ctrl_scale (A,): an action of 1 asks a servo at its offset for a share of its effort.

    Raises:
      ConfigError: an actuator is no position servo with a forcerange.
    """
    rows = robot.actuator_table()
    for row in rows:
        if row.kind != "position" or np.isinf(row.force_range[1]):
            has = "no forcerange" if row.kind == "position" else f"the type {row.kind}"
            raise ConfigError(
                f"{robot.path}: actuator '{row.name}' on joint '{row.joint}' has {has}; this task "
                "needs position servos, each with a forcerange"
            )
    return effort_share * np.array([row.force_range[1] / row.kp for row in rows])


def _range(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def _robot_path(task: Task, name: str) -> Path:
    path = Path(task.robot)
    if path.is_absolute():
        return path
    beside = Path(name).parent / path
    return beside if name.endswith(".py") and beside.exists() else ASSETS / path


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"task file '{path}' does not exist")
    name = f"_unilab_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except TermError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)] or [None]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        raise ConfigError(
            f"{path}{'' if line is None else f':{line}'}: this task file cannot be imported: "
            f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
        ) from error
    return module
