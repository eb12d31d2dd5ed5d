"""From an MJCF file and declared sensors to a checked, compiled robot.

Only MuJoCo's own compiler reads MJCF; every name, id, size and address below comes from the
compiled model. What is wrong with a user's file is said here, once, as a `ConfigError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import mujoco
import numpy as np
from numpy.typing import NDArray

from unilab.errors import ConfigError, nearest

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
Reduce = Literal["last", "max", "any"]

_OBJ = mujoco.mjtObj
_SENS = mujoco.mjtSensor
_FRAME = ("site", "body", "geom")
_OBJ_TYPES = {
    "site": _OBJ.mjOBJ_SITE,
    "body": _OBJ.mjOBJ_BODY,
    "geom": _OBJ.mjOBJ_GEOM,
    "joint": _OBJ.mjOBJ_JOINT,
    "actuator": _OBJ.mjOBJ_ACTUATOR,
}
_MOTIONS = ("pos", "quat", "xaxis", "yaxis", "zaxis", "linvel", "angvel")
_REFERABLE = frozenset(f"frame{motion}" for motion in _MOTIONS)
# sensor kind -> (MuJoCo type, what it may be attached to)
_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    **{
        kind: (getattr(_SENS, f"mjSENS_{kind.upper()}"), ("site",))
        for kind in ("gyro", "velocimeter", "accelerometer", "magnetometer", "force", "torque")
    },
    **{
        kind: (getattr(_SENS, f"mjSENS_{kind.upper()}"), _FRAME)
        for kind in (*sorted(_REFERABLE), "framelinacc", "frameangacc")
    },
    **{
        kind: (getattr(_SENS, f"mjSENS_{kind.upper()}"), ("body",))
        for kind in ("subtreecom", "subtreelinvel", "subtreeangmom")
    },
    "touch": (_SENS.mjSENS_TOUCH, ("site",)),
    "jointpos": (_SENS.mjSENS_JOINTPOS, ("joint",)),
    "jointvel": (_SENS.mjSENS_JOINTVEL, ("joint",)),
    "jointactuatorfrc": (_SENS.mjSENS_JOINTACTFRC, ("joint",)),
    "actuatorfrc": (_SENS.mjSENS_ACTUATORFRC, ("actuator",)),
}
# intprm of a contact sensor: data bits, reduction, number of slots (MuJoCo's mjspec).
_CONTACT_DATA = {"found": (1, 1), "force": (2, 3)}  # name -> (bit, floats)
_NETFORCE = 3  # one summed force, in the world frame
_JOINT_QPOS = {0: 7, 1: 4, 2: 1, 3: 1}  # mjtJoint -> numbers in qpos
# Plain ints: a NumPy integer never equals a member of MuJoCo's enums.
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_ONE_DOF = (int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE))
SUPPORTED_ACTUATORS = ("motor", "position", "velocity", "general")


@dataclass(frozen=True)
class SensorSpec:
    """A MuJoCo sensor that a task reads; several objects give one contiguous block.

    Exactly one of site, body, geom, joint, actuator is given: a name, or a tuple of names. A body
    means its frame (not its centre of mass), except for the subtree kinds.

    Args:
      name: how the task calls it.
      kind: MuJoCo's sensor tag: gyro, velocimeter, framezaxis, subtreeangmom, jointpos ...
      reference_site, reference_body: express a frame sensor relative to this frame; `world` seen
        from the imu gives the direction of up in the imu's frame.
      reduce: how the values of the substeps become one value.
    """

    name: str
    kind: str
    site: str | tuple[str, ...] = ()
    body: str | tuple[str, ...] = ()
    geom: str | tuple[str, ...] = ()
    joint: str | tuple[str, ...] = ()
    actuator: str | tuple[str, ...] = ()
    reference_site: str = ""
    reference_body: str = ""
    reduce: Reduce = "last"


@dataclass(frozen=True)
class ContactSensorSpec:
    """Contact of each listed geom with one other geom: len(geoms) or 3 * len(geoms) floats.

    Args:
      name: how the task calls it.
      geoms: the geoms that are watched, e.g. the feet.
      against: the other geom, e.g. the floor.
      data: "found" is the number of contacts (0 = none); "force" is the net force in N, world
        frame, that `against` exerts on the geom (a resting ball of weight w reads 0, 0, +w).
      reduce: how the values of the substeps become one value.
    """

    name: str
    geoms: tuple[str, ...]
    against: str
    data: Literal["found", "force"] = "found"
    reduce: Reduce = "last"


@dataclass(frozen=True)
class ContactModel:
    """How contacts are modelled, in place of what the file says.

    Args:
      cone: friction cone. "pyramidal" with impratio 1 is the cheapest for Newton, and converges.
      impratio: ratio of frictional to normal impedance; higher slips less and costs more.
      condim: shell pattern of geom names -> contact dimensions (1, 3, 4 or 6).
    """

    cone: Literal["pyramidal", "elliptic"]
    impratio: float = 1.0
    condim: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SensorSlice:
    """Where a declared sensor lies in `sensordata`: columns [start, stop)."""

    start: int
    stop: int
    reduce: Reduce


@dataclass(frozen=True)
class ActuatorRow:
    """What one actuator is, as found in the compiled model.

    `kind` follows MuJoCo's shortcuts: motor, position, velocity, general (another stateless affine
    law), or the name of a type that is not supported. kp is torque per rad (or N/m), kd torque per
    rad/s, both before `gear`. An unlimited range reads (-inf, inf).
    """

    name: str
    joint: str
    kind: str
    kp: float
    kd: float
    gear: float
    ctrl_range: tuple[float, float]
    force_range: tuple[float, float]

    @property
    def supported(self) -> bool:
        """True where an action can be mapped to this actuator's ctrl."""
        return self.kind in SUPPORTED_ACTUATORS


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
    """

    model: Any
    path: Path
    actuator_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    root_joint: str | None
    sensors: Mapping[str, SensorSlice]
    default_qpos: F64 = field(repr=False)

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

    def geom_id(self, name: str) -> int:
        """Return a geom's id. Raises ConfigError: no such geom."""
        return _find(self.model, "geom", name, str(self.path))

    def body_id(self, name: str) -> int:
        """Return a body's id. Raises ConfigError: no such body."""
        return _find(self.model, "body", name, str(self.path))

    def site_id(self, name: str) -> int:
        """Return a site's id. Raises ConfigError: no such site."""
        return _find(self.model, "site", name, str(self.path))

    def actuator_table(self) -> tuple[ActuatorRow, ...]:
        """Return one row an actuator, in ctrl order."""
        return actuator_table(self.model)

    def require_ctrlrange(self) -> F64:
        """Return (A, 2) f64 ctrl ranges, for a task that derives its action scale from them.

        Position servos may be unlimited, (-inf, inf): their scale comes from the task.

        Raises:
          ConfigError: another actuator has no range, so the file does not say how much is full.
        """
        rows = self.actuator_table()
        bad = [r for r in rows if r.kind != "position" and np.isinf(r.ctrl_range).any()]
        if bad:
            names = ", ".join(f"'{r.name}' ({r.kind} on joint '{r.joint}')" for r in bad)
            raise ConfigError(
                f"{self.path}: actuator {names} has no ctrlrange, so an action of 1 has no "
                f'meaning. Fix: give it one, e.g. ctrllimited="true" ctrlrange="-1 1".'
            )
        return np.array([r.ctrl_range for r in rows])

    def _one_dof(self, names: Sequence[str]) -> I32:
        ids = [_find(self.model, "joint", name, str(self.path)) for name in names]
        for joint_id, name in zip(ids, names, strict=True):
            if self.model.jnt_type[joint_id] not in _ONE_DOF:
                raise ConfigError(
                    f"{self.path}: joint '{name}' is not a hinge or slide joint, so it has no "
                    f"single position. Valid: {', '.join(_one_dof_names(self.model)) or 'none'}."
                )
        return np.array(ids, np.int32)


def load_spec(path: str | os.PathLike[str]) -> Any:
    """Parse an MJCF file.

    Args:
      path: an .xml file; what it includes and its meshes are found from where it lies.

    Returns:
      The `mujoco.MjSpec`, not compiled.

    Raises:
      ConfigError: no such file, a folder, an empty file, or XML that MuJoCo refuses (with its
        element and line).
    """
    file = Path(path).expanduser().absolute()
    if not file.exists():
        others = [p.name for p in file.parent.glob("*.xml")] if file.parent.is_dir() else []
        where = f"in {file.parent}: {nearest(file.name, others)}" if others else "check the path."
        raise ConfigError(f"{file}: robot file not found; {where}")
    if file.is_dir():
        found = ", ".join(sorted(p.name for p in file.glob("*.xml"))) or "no .xml file"
        raise ConfigError(f"{file}: is a folder, an MJCF .xml file is needed; it holds: {found}")
    if file.suffix.lower() != ".xml":
        raise ConfigError(f"{file}: '{file.suffix}' file came, an MJCF .xml file is needed.")
    if not file.read_bytes().strip():
        raise ConfigError(f"{file}: the file is empty, an MJCF model is needed.")
    try:
        return mujoco.MjSpec.from_file(str(file))
    except (ValueError, mujoco.FatalError) as error:
        raise ConfigError(_refused(file, error)) from error


def compile_robot(
    path: str | os.PathLike[str],
    *,
    sensors: Sequence[SensorSpec | ContactSensorSpec] = (),
    timestep_s: float | None = None,
    collision_geoms: Sequence[str] | None = None,
    contact: ContactModel | None = None,
    strip_visuals: bool = False,
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
      strip_visuals: leave out geoms, meshes, materials that physics does not need. Training only.

    Returns:
      The robot.

    Raises:
      ConfigError: see `load_spec`; a mesh not found; no moving body, no actuator or an unsupported
        one, two free joints, a keyframe of the wrong length; an unknown name in `sensors` or
        `collision_geoms`.
    """
    file = Path(path).expanduser().absolute()
    spec = load_spec(file)
    if timestep_s is not None:
        if not timestep_s > 0:
            raise ConfigError(f"{file}: timestep_s is {timestep_s}; it must be above 0.")
        spec.option.timestep = timestep_s
    keys = _key_lengths(spec)
    base = _compile_base(spec, keys, file)
    root_joint = _check_robot(base, file)
    if collision_geoms is not None:
        _restrict_collisions(spec, base, collision_geoms, file)
    if contact is not None:
        _set_contact_model(spec, contact, file)
    for old in list(spec.sensors):
        spec.delete(old)
    blocks = _add_sensors(spec, base, sensors, file)
    spec.compiler.discardvisual = strip_visuals or spec.compiler.discardvisual
    model = _compile(spec, file)
    rows = actuator_table(model)
    home = mujoco.mj_name2id(model, _OBJ.mjOBJ_KEY, "home")
    default_qpos = np.array(model.key_qpos[home] if home >= 0 else model.qpos0, np.float64)
    if not np.isfinite(default_qpos).all():
        raise ConfigError(f"{file}: the home pose holds a number that is not finite.")
    default_qpos.setflags(write=False)
    return Robot(
        model=model,
        path=file,
        actuator_names=tuple(row.name for row in rows),
        joint_names=tuple(row.joint for row in rows),
        root_joint=root_joint,
        sensors=MappingProxyType(_slices(model, blocks)),
        default_qpos=default_qpos,
    )


def actuator_table(model: Any) -> tuple[ActuatorRow, ...]:
    """Classify every actuator by the gain, bias and dynamics types of the compiled model.

    Args:
      model: a compiled MjModel.

    Returns:
      One row an actuator, in ctrl order.
    """
    return tuple(_actuator_row(model, i) for i in range(model.nu))


def format_actuator_table(rows: Sequence[ActuatorRow]) -> str:
    """Return the rows as aligned text for a person, one line an actuator under a header."""
    cells = [("actuator", "joint", "type", "kp", "kd", "ctrl range", "force range")]
    for row in rows:
        kind = row.kind if row.supported else f"{row.kind} (not supported)"
        ranges = [f"{low:g} {high:g}" for low, high in (row.ctrl_range, row.force_range)]
        cells.append((row.name, row.joint, kind, f"{row.kp:g}", f"{row.kd:g}", *ranges))  # type: ignore[arg-type]
    widths = [max(len(line[i]) for line in cells) for i in range(7)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _actuator_row(model: Any, i: int) -> ActuatorRow:
    gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
    gain_type = _tag(mujoco.mjtGain, model.actuator_gaintype[i])
    bias_type = _tag(mujoco.mjtBias, model.actuator_biastype[i])
    transmission = _tag(mujoco.mjtTrn, model.actuator_trntype[i])
    law = f"{gain_type} gain"
    if (gain_type, bias_type) == ("fixed", "none"):
        law = "motor"
    elif (gain_type, bias_type) == ("fixed", "affine"):
        law = "general"
        if gain[0] != 0 and bias[0] == 0 and bias[1] == -gain[0]:
            law = "position"
        elif gain[0] != 0 and bias[0] == bias[1] == 0 and bias[2] == -gain[0]:
            law = "velocity"
    joint_id = int(model.actuator_trnid[i, 0]) if "joint" in transmission else -1

    def limits(limited: Any, bounds: Any) -> tuple[float, float]:
        return (float(bounds[0]), float(bounds[1])) if limited else (-np.inf, np.inf)

    return ActuatorRow(
        name=_name(model, "actuator", i),
        joint=_name(model, "joint", joint_id) if joint_id >= 0 else "",
        kind=_actuator_kind(model, i, law, transmission),
        kp=float(-bias[1]) if bias_type == "affine" else 0.0,
        kd=float(-bias[2]) if bias_type == "affine" else 0.0,
        gear=float(model.actuator_gear[i, 0]),
        ctrl_range=limits(model.actuator_ctrllimited[i], model.actuator_ctrlrange[i]),
        force_range=limits(model.actuator_forcelimited[i], model.actuator_forcerange[i]),
    )


def _actuator_kind(model: Any, i: int, law: str, transmission: str) -> str:
    """Name actuator i: its force law, or what keeps it out of SUPPORTED_ACTUATORS."""
    dynamics = _tag(mujoco.mjtDyn, model.actuator_dyntype[i])
    if model.actuator_plugin[i] >= 0:
        return "plugin"
    if dynamics == "integrator":
        return "intvelocity" if law == "position" else f"integrated {law}"
    if dynamics.startswith("filter"):
        return f"filtered {law}"
    if dynamics != "none":
        return dynamics  # muscle, pid, dcmotor, user
    if transmission == "body":
        return "adhesion"
    if "joint" not in transmission:
        return f"{law} on a {transmission}"
    if model.jnt_type[model.actuator_trnid[i, 0]] not in _ONE_DOF:
        return f"{law} on a ball or free joint"
    return law


def _tag(enum: Any, value: Any) -> str:
    """Return MuJoCo's short name of an enum's value: mjGAIN_FIXED gives `fixed`."""
    return str(enum(int(value)).name).split("_", 1)[1].lower()


def _compile_base(spec: Any, keys: Sequence[tuple[str, dict[str, int]]], file: Path) -> Any:
    """Compile the file as it is and check its keyframes, which may be what fails to compile."""
    try:
        model = _compile(spec, file)
    except ConfigError as error:
        if "keyframe" in str(error):
            bare = load_spec(file)
            for key in list(bare.keys):
                bare.delete(key)
            _check_keyframes(_compile(bare, file), keys, file)
        raise
    _check_keyframes(model, keys, file)
    return model


def _compile(spec: Any, file: Path) -> Any:
    try:
        return spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        missing = re.search(r"Error opening file '(.*?)'", str(error))
        if missing:
            raise ConfigError(_asset_missing(spec, file, missing.group(1))) from error
        raise ConfigError(_refused(file, error)) from error


def _refused(file: Path, error: Exception) -> str:
    text = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{file}: MuJoCo {mujoco.__version__} refuses this model: {text}"


def _asset_missing(spec: Any, file: Path, opened: str) -> str:
    """Explain a mesh, texture or height field that was not found: every place, and a way out."""
    lost = (file.parent / opened).absolute()
    textures = [Path(f).name for t in spec.textures for f in (t.file, *t.cubefiles) if f]
    key = "texturedir" if lost.name in textures else "meshdir"
    # MuJoCo looks in the top file's meshdir, then beside the included file.
    first = file.parent / (spec.texturedir if key == "texturedir" else spec.meshdir)
    tried = list(dict.fromkeys([first / lost.name, lost]))
    lines = [f"{file}: file '{lost.name}' of the model was not found."]
    lines += [f"  tried: {place}" for place in tried]
    candidates = [file.parent]
    for include, line in _includes(file):
        text = include.read_text(errors="replace") if include.is_file() else ""
        lines.append(f"  included: {include} (line {line} of {file.name})")
        dirs = re.findall(r"\b(?:meshdir|assetdir|texturedir)\s*=\s*[\"'](.*?)[\"']", text)
        candidates += [include.parent / d for d in (*dirs, "")]
    found = next((c for c in candidates if (c / lost.name).is_file()), None)
    wanted = os.path.relpath(found, file.parent) if found else "FOLDER_OF_THE_FILE"
    lines.append(
        f'  fix: {key} counts from the folder of the top file; put <compiler {key}="{wanted}"/> '
        f"into {file.name}, after its <include> lines"
        + (f" (the file lies in {found})." if found else ".")
    )
    return "\n".join(lines)


def _includes(file: Path) -> list[tuple[Path, int]]:
    """List the files a file includes with their line: for the text of an error only."""
    found = []
    for line, text in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        for name in re.findall(r"<include\b[^>]*\bfile\s*=\s*[\"'](.*?)[\"']", text):
            found.append((file.parent / name, line))
    return found


def _check_robot(model: Any, file: Path) -> str | None:
    """Refuse what cannot be trained. Returns the free joint's name, if there is one."""
    if model.nv == 0:
        raise ConfigError(f"{file}: nothing in this model can move: it has no joint.")
    free = np.flatnonzero(model.jnt_type == _FREE)
    if len(free) > 1:
        names = " and ".join(
            f"'{_name(model, 'joint', int(j))}' (body "
            f"'{_name(model, 'body', int(model.jnt_bodyid[j]))}')"
            for j in free
        )
        raise ConfigError(
            f"{file}: {len(free)} free joints: {names}; one robot with at most one free joint is "
            f"valid. Fix: take the loose object out, or fix it to the world."
        )
    if model.nu == 0:
        raise ConfigError(
            f"{file}: the model has no actuator, so there is nothing to act on. Fix: add an "
            f"<actuator> section. Joints: {', '.join(_one_dof_names(model)) or 'none'}."
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
    return _name(model, "joint", int(free[0])) if len(free) else None


def _key_lengths(spec: Any) -> list[tuple[str, dict[str, int]]]:
    """Read how many numbers each keyframe holds, as written: compiling fills short ones up."""
    parts = ("qpos", "qvel", "act", "ctrl", "mpos", "mquat")
    return [
        (key.name or f"#{i}", {part: len(getattr(key, part)) for part in parts})
        for i, key in enumerate(spec.keys)
    ]


def _check_keyframes(model: Any, keys: Sequence[tuple[str, dict[str, int]]], file: Path) -> None:
    """Refuse a keyframe that is not as long as the model: MuJoCo takes short ones silently."""
    sizes = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "ctrl": model.nu}
    sizes |= {"mpos": 3 * model.nmocap, "mquat": 4 * model.nmocap}
    for key, lengths in keys:
        for part, came in lengths.items():
            if came in (0, sizes[part]):
                continue
            layout = ", ".join(
                f"{_name(model, 'joint', j)}: {_JOINT_QPOS[int(model.jnt_type[j])]}"
                for j in range(model.njnt)
            )
            raise ConfigError(
                f"{file}: keyframe '{key}' has {came} numbers in {part}, this model needs "
                f"{sizes[part]}. Fix: write all of them in the order of the model"
                + (f" ({layout})." if part == "qpos" else ".")
            )


def _restrict_collisions(spec: Any, base: Any, patterns: Sequence[str], file: Path) -> None:
    """Switch off contact for the geoms of moving bodies that no pattern names."""
    geoms = list(spec.geoms)
    names = [geom.name for geom in geoms if geom.name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"{file}: collision geom '{pattern}' matches no geom; {nearest(pattern, names)}"
            )
    kept = set()
    for geom in geoms:
        fixed = base.body_weldid[base.geom_bodyid[geom.id]] == 0
        if fixed or any(fnmatchcase(geom.name, pattern) for pattern in patterns):
            kept.add(geom.name)
        else:
            geom.contype = geom.conaffinity = 0
    for pair in list(spec.pairs):
        if not {pair.geomname1, pair.geomname2} <= kept:
            spec.delete(pair)


def _set_contact_model(spec: Any, contact: ContactModel, file: Path) -> None:
    cones = {
        "pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL,
        "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC,
    }
    spec.option.cone = cones[contact.cone]
    spec.option.impratio = contact.impratio
    names = [geom.name for geom in spec.geoms if geom.name]
    for pattern, condim in contact.condim.items():
        matching = [geom for geom in spec.geoms if fnmatchcase(geom.name, pattern)]
        if not matching:
            raise ConfigError(
                f"{file}: contact geom '{pattern}' matches no geom; {nearest(pattern, names)}"
            )
        for geom in matching:
            geom.condim = condim


def _add_sensors(
    spec: Any, base: Any, sensors: Sequence[SensorSpec | ContactSensorSpec], file: Path
) -> dict[str, tuple[list[str], Reduce]]:
    """Add the declared sensors. Returns declared name -> (names of its MuJoCo sensors, reduce)."""
    blocks: dict[str, tuple[list[str], Reduce]] = {}
    for sensor in sensors:
        where = f"{file}: sensor '{sensor.name}'"
        if sensor.name in blocks:
            raise ConfigError(f"{where} is declared twice; give each its own name.")
        if sensor.reduce not in ("last", "max", "any"):
            raise ConfigError(f"{where}: reduce '{sensor.reduce}'; valid: last, max, any.")
        add = _add_contact if isinstance(sensor, ContactSensorSpec) else _add_plain
        blocks[sensor.name] = (add(spec, base, sensor, where), sensor.reduce)  # type: ignore[arg-type]
    return blocks


def _add_plain(spec: Any, base: Any, sensor: SensorSpec, where: str) -> list[str]:
    if sensor.kind not in _KINDS:
        raise ConfigError(f"{where}: unknown kind '{sensor.kind}'; {nearest(sensor.kind, _KINDS)}")
    kind_type, allowed = _KINDS[sensor.kind]
    given = [k for k in _OBJ_TYPES if getattr(sensor, k)]
    if len(given) != 1 or given[0] not in allowed:
        came = ", ".join(given) or "nothing"
        raise ConfigError(f"{where}: {sensor.kind} needs one of: {', '.join(allowed)}; got {came}.")
    reference = sensor.reference_site or sensor.reference_body
    if reference and (
        sensor.kind not in _REFERABLE or (sensor.reference_site and sensor.reference_body)
    ):
        raise ConfigError(
            f"{where}: one reference, for the kinds {', '.join(sorted(_REFERABLE))} only."
        )
    extra = {}
    if reference:
        ref_kind = "site" if sensor.reference_site else "body"
        _find(base, ref_kind, reference, where)
        extra = {"reftype": _frame_type(ref_kind), "refname": reference}
    value = getattr(sensor, given[0])
    targets = (value,) if isinstance(value, str) else tuple(value)
    object_type = _frame_type(given[0]) if allowed == _FRAME else _OBJ_TYPES[given[0]]
    names = []
    for target in targets:
        _find(base, given[0], target, where)
        names.append(sensor.name if len(targets) == 1 else f"{sensor.name}/{target}")
        spec.add_sensor(
            name=names[-1], type=kind_type, objtype=object_type, objname=target, **extra
        )
    return names


def _add_contact(spec: Any, base: Any, sensor: ContactSensorSpec, where: str) -> list[str]:
    if sensor.data not in _CONTACT_DATA:
        raise ConfigError(f"{where}: data '{sensor.data}'; valid: {', '.join(_CONTACT_DATA)}.")
    if not sensor.geoms:
        raise ConfigError(f"{where}: no geom listed; name at least one.")
    for geom in (*sensor.geoms, sensor.against):
        _find(base, "geom", geom, where)
    names = [f"{sensor.name}/{geom}" for geom in sensor.geoms]
    for name, geom in zip(names, sensor.geoms, strict=True):
        # MuJoCo reports the force of the first object on the second.
        spec.add_sensor(
            name=name,
            type=_SENS.mjSENS_CONTACT,
            objtype=_OBJ.mjOBJ_GEOM,
            objname=sensor.against,
            reftype=_OBJ.mjOBJ_GEOM,
            refname=geom,
            intprm=[_CONTACT_DATA[sensor.data][0], _NETFORCE, 1],
        )
    return names


def _slices(model: Any, blocks: Mapping[str, tuple[list[str], Reduce]]) -> dict[str, SensorSlice]:
    slices, position = {}, 0
    for name, (members, reduce) in blocks.items():
        start = position
        for member in members:
            sensor_id = mujoco.mj_name2id(model, _OBJ.mjOBJ_SENSOR, member)
            assert model.sensor_adr[sensor_id] == position, "declared order is sensordata order"
            position += int(model.sensor_dim[sensor_id])
        slices[name] = SensorSlice(start, position, reduce)
    assert position == model.nsensordata
    return slices


def _frame_type(kind: str) -> Any:
    return _OBJ.mjOBJ_XBODY if kind == "body" else _OBJ_TYPES[kind]


def _find(model: Any, kind: str, name: str, where: str) -> int:
    found = int(mujoco.mj_name2id(model, _OBJ_TYPES[kind], name))
    if found < 0:
        count = {"actuator": "nu", "joint": "njnt"}.get(kind, f"n{kind}")
        names = _names(model, kind, getattr(model, count))
        raise ConfigError(f"{where}: no {kind} is named '{name}'; {nearest(name, names)}")
    return found


def _names(model: Any, kind: str, count: int) -> list[str]:
    names = (mujoco.mj_id2name(model, _OBJ_TYPES[kind], i) for i in range(count))
    return [name for name in names if name]


def _name(model: Any, kind: str, i: int) -> str:
    """Return an object's name, or a readable stand-in like `#2` for one without."""
    return mujoco.mj_id2name(model, _OBJ_TYPES[kind], i) or f"#{i}"


def _one_dof_names(model: Any) -> list[str]:
    return [_name(model, "joint", j) for j in range(model.njnt) if model.jnt_type[j] in _ONE_DOF]
