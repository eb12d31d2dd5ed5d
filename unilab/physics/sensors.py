"""Sensors that a task declares: added to a spec, and found again in the compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mujoco

from unilab.errors import ConfigError, nearest
from unilab.physics.names import OBJECT_TYPES, find

Reduce = Literal["last", "max", "any"]
Block = tuple[list[str], Reduce]  # names of the MuJoCo sensors of one declared sensor, reduction

_OBJ = mujoco.mjtObj
_SENS = mujoco.mjtSensor
_FRAME = ("site", "body", "geom")
_ATTACHED_TO = (*_FRAME, "joint", "actuator")
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
class SensorSlice:
    """Where a declared sensor lies in `sensordata`: columns [start, stop)."""

    start: int
    stop: int
    reduce: Reduce


def add_sensors(
    spec: Any, base: Any, sensors: Sequence[SensorSpec | ContactSensorSpec], file: Path
) -> dict[str, Block]:
    """Add the declared sensors to a spec.

    Args:
      spec: where they are added.
      base: the same model compiled without them: the names that they may refer to.
      sensors: declared by the task.
      file: for the error.

    Returns:
      Declared name -> its block, for `sensor_slices`.

    Raises:
      ConfigError: a name, a kind or another value that is not valid, and what is.
    """
    blocks: dict[str, Block] = {}
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
    given = [k for k in _ATTACHED_TO if getattr(sensor, k)]
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
        find(base, ref_kind, reference, where)
        extra = {"reftype": _frame_type(ref_kind), "refname": reference}
    value = getattr(sensor, given[0])
    targets = (value,) if isinstance(value, str) else tuple(value)
    object_type = _frame_type(given[0]) if allowed == _FRAME else OBJECT_TYPES[given[0]]
    names = []
    for target in targets:
        find(base, given[0], target, where)
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
        find(base, "geom", geom, where)
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


def sensor_slices(model: Any, blocks: Mapping[str, Block]) -> dict[str, SensorSlice]:
    """Return where the blocks that `add_sensors` added lie in the compiled model's sensordata."""
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
    return _OBJ.mjOBJ_XBODY if kind == "body" else OBJECT_TYPES[kind]
