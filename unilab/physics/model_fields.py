"""What entries of the `randomization` block change in a model, and when that is possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import mujoco
import numpy as np

from unilab.config.randomization import (
    ActuatorGains,
    BodyCom,
    BodyMass,
    Entry,
    GeomFriction,
    Gravity,
    ModelEntry,
)
from unilab.errors import ConfigError, nearest
from unilab.physics.actuators import actuator_table
from unilab.physics.base import F64, I32
from unilab.physics.names import OBJECT_TYPES, ONE_DOF_JOINTS, name_of

# Draws `shape` numbers for a range of an entry: (key, entry, shape) -> F64.
Draw = Callable[[str, Entry, tuple[int, ...]], F64]


@dataclass(frozen=True)
class ModelField:
    """How an entry changes a model.

    Attributes:
      kind: of the objects it selects; "" selects nothing.
      selector: the key that holds the patterns.
      apply: (model, entry, ids, draw) changes a copy of the nominal model.
      check: (model, entry, ids, where) raises ConfigError where that has no effect.
      result: (model, ids) -> what must come out above 0, one number an id.
      may_be_zero: 0 is possible too.
    """

    kind: str
    selector: str
    apply: Callable[[Any, Any, I32, Draw], None]
    check: Callable[[Any, Any, I32, str], None]
    result: Callable[[Any, I32], F64] | None = None
    may_be_zero: bool = True

    def select(self, model: Any, entry: ModelEntry, where: str) -> I32:
        """Return the ids (n,) that the patterns of an entry name, in the order of the model.

        Raises:
          ConfigError: a pattern names nothing that can be changed.
        """
        if not self.kind:
            return np.zeros(0, np.int32)
        ids, reason = _ELIGIBLE[self.kind](model)
        names = {
            int(i): mujoco.mj_id2name(model, OBJECT_TYPES[self.kind], int(i)) or "" for i in ids
        }
        patterns = getattr(entry, self.selector)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names.values()):
                raise ConfigError(
                    f"{where}.{self.selector}: '{pattern}' matches no {self.kind} {reason}; "
                    f"{nearest(pattern, [name for name in names.values() if name])}"
                )
        chosen = [i for i, name in names.items() if any(fnmatchcase(name, p) for p in patterns)]
        return np.array(chosen, np.int32)

    def check_result(self, changed: Any, nominal: Any, ids: I32, where: str) -> None:
        """Refuse a value that is not possible. Raises ConfigError: names the first object."""
        if self.result is None:
            return
        values = self.result(changed, ids)
        bad = np.flatnonzero(~(values >= 0) if self.may_be_zero else ~(values > 0))
        if len(bad):
            name = name_of(nominal, self.kind, int(ids[bad[0]]))
            valid = "0 or more" if self.may_be_zero else "above 0"
            raise ConfigError(
                f"{where}: {self.kind} '{name}' could get {values[bad[0]]:g}, its nominal is "
                f"{self.result(nominal, ids)[bad[0]]:g}; valid: {valid}. Narrow the range, or take "
                f"it out of {where}.{self.selector}"
            )


# -- what can be selected -------------------------------------------------------------------------


def _bodies(model: Any) -> tuple[I32, str]:
    return np.flatnonzero(model.body_mass > 0).astype(np.int32), "that has a mass"


def _geoms(model: Any) -> tuple[I32, str]:
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    return np.flatnonzero(collides).astype(np.int32), "that can collide"


def _joints(model: Any) -> tuple[I32, str]:
    is_one_dof = np.isin(model.jnt_type, ONE_DOF_JOINTS)
    return np.flatnonzero(is_one_dof).astype(np.int32), "that is a hinge or a slide"


def _actuators(model: Any) -> tuple[I32, str]:
    return np.arange(model.nu, dtype=np.int32), ""


_ELIGIBLE: dict[str, Callable[[Any], tuple[I32, str]]] = {
    "body": _bodies,
    "geom": _geoms,
    "joint": _joints,
    "actuator": _actuators,
}

# -- what is changed, from the nominal ------------------------------------------------------------


def _shape(entry: Any, ids: I32) -> tuple[int, ...]:
    return (1,) if entry.together else (len(ids),)


def _scaled_and_moved(nominal: F64, entry: Any, ids: I32, draw: Draw) -> F64:
    """Return (n,) nominal * scale + add, with whichever of the two the entry has."""
    shape, value = _shape(entry, ids), nominal
    for key in entry.RANGES:
        if getattr(entry, key) is not None:
            drawn = draw(key, entry, shape)
            value = value * drawn if key == "scale" else value + drawn
    return value


def _body_mass(model: Any, entry: BodyMass, ids: I32, draw: Draw) -> None:
    nominal = model.body_mass[ids]
    mass = _scaled_and_moved(nominal, entry, ids, draw)
    model.body_mass[ids] = mass
    if entry.scale_inertia:
        model.body_inertia[ids] *= (mass / nominal)[:, None]


def _body_com(model: Any, entry: BodyCom, ids: I32, draw: Draw) -> None:
    for axis, key in enumerate(entry.RANGES):
        if getattr(entry, key) is not None:
            model.body_ipos[ids, axis] += draw(key, entry, _shape(entry, ids))


def _geom_friction(model: Any, entry: GeomFriction, ids: I32, draw: Draw) -> None:
    shape = _shape(entry, ids)
    for column, key in enumerate(("slide", "spin_m", "roll_m")):
        if getattr(entry, key) is not None:
            model.geom_friction[ids, column] = draw(key, entry, shape)
    if entry.scale is not None:
        model.geom_friction[ids] *= draw("scale", entry, shape)[:, None]


def _actuator_gains(model: Any, entry: ActuatorGains, ids: I32, draw: Draw) -> None:
    """Position servo: force = kp (ctrl - q) - kd v; velocity servo: force = kd (ctrl - v)."""
    is_velocity = model.actuator_biasprm[ids, 1] == 0
    if entry.kp_scale is not None:
        factor = draw("kp_scale", entry, _shape(entry, ids))
        model.actuator_gainprm[ids, 0] *= factor
        model.actuator_biasprm[ids, 1] *= factor
    if entry.kd_scale is not None:
        factor = draw("kd_scale", entry, _shape(entry, ids))
        model.actuator_gainprm[ids, 0] *= np.where(is_velocity, factor, 1.0)
        model.actuator_biasprm[ids, 2] *= factor


def _of_dofs(array: str) -> Callable[[Any, Any, I32, Draw], None]:
    def apply(model: Any, entry: Any, ids: I32, draw: Draw) -> None:
        dofs = model.jnt_dofadr[ids]
        values = getattr(model, array)
        values[dofs] = _scaled_and_moved(values[dofs], entry, ids, draw)

    return apply


def _gravity(model: Any, entry: Gravity, _ids: I32, draw: Draw) -> None:
    if entry.scale is not None:
        model.opt.gravity[:] *= draw("scale", entry, (1,))
    if entry.add_ms2 is not None:
        model.opt.gravity[:] += draw("add_ms2", entry, (3,))


def _actuator_strength(model: Any, entry: Any, ids: I32, draw: Draw) -> None:
    factors = np.broadcast_to(draw("scale", entry, _shape(entry, ids)), len(ids))
    for i, factor in zip(ids, factors, strict=True):
        joint = model.actuator_trnid[i, 0]
        if model.actuator_forcelimited[i]:
            model.actuator_forcerange[i] *= factor
        if model.jnt_actfrclimited[joint]:
            model.jnt_actfrcrange[joint] *= factor


# -- what would have no effect --------------------------------------------------------------------


def _check_scale(values: Callable[[Any, I32], F64]) -> Callable[[Any, Any, I32, str], None]:
    """A factor on nothing but zeros, with nothing added, changes nothing."""

    def check(model: Any, entry: Any, ids: I32, where: str) -> None:
        others = [k for k in entry.RANGES if k != "scale"]
        alone = all(getattr(entry, k) is None for k in others)
        if entry.scale is not None and alone and not np.any(values(model, ids)):
            raise ConfigError(
                f"{where}.scale: has no effect, the nominal is 0 for all that is selected; set "
                f"{' or '.join(f'{where}.{k}' for k in others)} instead"
            )

    return check


def _check_com(model: Any, _entry: BodyCom, ids: I32, where: str) -> None:
    """Where a body's frame allows, MuJoCo compiles its inertia matrix as diagonal, for good."""
    simple = [int(i) for i in ids if model.body_simple[i]]
    if simple:
        raise ConfigError(
            f"{where}.bodies: the inertia of body '{name_of(model, 'body', simple[0])}' is "
            "compiled as diagonal, so its centre of mass cannot be moved; give it an <inertial> "
            f"that is off its origin, or take it out of {where}.bodies"
        )


def _check_friction(model: Any, _entry: GeomFriction, ids: I32, where: str) -> None:
    in_pairs = set(model.pair_geom1.tolist()) | set(model.pair_geom2.tolist())
    for i in ids:
        if int(i) in in_pairs:
            raise ConfigError(
                f"{where}.geoms: geom '{name_of(model, 'geom', int(i))}' is in a contact <pair>, "
                f"which has a friction of its own; take it out of {where}.geoms"
            )


def _check_gains(model: Any, entry: ActuatorGains, ids: I32, where: str) -> None:
    rows = actuator_table(model)
    for i in ids:
        row = rows[i]
        valid = ("position",) if entry.kp_scale is not None else ("position", "velocity")
        if row.kind not in valid:
            key = "kp_scale" if entry.kp_scale is not None else "kd_scale"
            raise ConfigError(
                f"{where}.{key}: actuator '{row.name}' is of type {row.kind}; valid: "
                f"{' and '.join(valid)} servos. Choose them with {where}.actuators"
            )
    if entry.kd_scale is not None and not np.any(model.actuator_biasprm[ids, 2]):
        raise ConfigError(
            f"{where}.kd_scale: has no effect, kd is 0 for all actuators that are selected; take "
            "it out, or draw randomization.joint_damping"
        )


def _check_strength(model: Any, _entry: Any, ids: I32, where: str) -> None:
    for i in ids:
        if not (
            model.actuator_forcelimited[i] or model.jnt_actfrclimited[model.actuator_trnid[i, 0]]
        ):
            raise ConfigError(
                f"{where}.actuators: actuator '{name_of(model, 'actuator', int(i))}' has no limit "
                "that could be scaled; give it a forcerange in the MJCF file, or take it out of "
                f"{where}.actuators"
            )


def _check_nothing(_model: Any, _entry: Any, _ids: I32, _where: str) -> None:
    """For a field that always has an effect."""


def _masses(model: Any, ids: I32) -> F64:
    return model.body_mass[ids]  # type: ignore[no-any-return]


def _dof_field(array: str) -> ModelField:
    def values(model: Any, ids: I32) -> F64:
        return getattr(model, array)[model.jnt_dofadr[ids]]  # type: ignore[no-any-return]

    return ModelField("joint", "joints", _of_dofs(array), _check_scale(values), values)


FIELDS: dict[str, ModelField] = {
    "body_mass": ModelField(
        "body", "bodies", _body_mass, _check_nothing, _masses, may_be_zero=False
    ),
    "body_com": ModelField("body", "bodies", _body_com, _check_com),
    "geom_friction": ModelField("geom", "geoms", _geom_friction, _check_friction),
    "actuator_gains": ModelField("actuator", "actuators", _actuator_gains, _check_gains),
    "joint_armature": _dof_field("dof_armature"),
    "joint_friction": _dof_field("dof_frictionloss"),
    "joint_damping": _dof_field("dof_damping"),
    "gravity": ModelField("", "", _gravity, _check_scale(lambda model, _: model.opt.gravity)),
    "actuator_strength": ModelField("actuator", "actuators", _actuator_strength, _check_strength),
}
