"""Which geoms collide, and how their contacts are modelled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import mujoco

from unilab.errors import ConfigError, nearest

_CONES = {
    "pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL,
    "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC,
}
_CONDIMS = (1, 3, 4, 6)  # MuJoCo's: normal; and sliding; and torsion; and rolling


@dataclass(frozen=True)
class ContactModel:
    """How contacts are modelled, in place of what the file says.

    Args:
      cone: friction cone. "pyramidal" with impratio 1 is the cheapest for Newton, and converges.
      impratio: ratio of frictional to normal impedance; higher slips less and costs more.
      condim: shell pattern of geom names -> contact dimensions, 1, 3, 4 or 6; a later one wins.
    """

    cone: Literal["pyramidal", "elliptic"]
    impratio: float = 1.0
    condim: Mapping[str, int] = field(default_factory=dict)


def restrict_collisions(spec: Any, base: Any, patterns: Sequence[str], file: Path) -> None:
    """Switch off contact for the geoms of moving bodies that no pattern names.

    Args:
      spec: is changed.
      base: the same model, compiled: it tells what is fixed to the world.
      patterns: shell patterns of geom names.
      file: for the error.

    Raises:
      ConfigError: a pattern matches no geom.
    """
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


def set_contact_model(spec: Any, contact: ContactModel, file: Path) -> None:
    """Set cone, impratio and the condim of the geoms that are named; nothing else changes.

    Args:
      spec: is changed.
      contact: what is set.
      file: for the error.

    Raises:
      ConfigError: a pattern matches no geom, or a value that is not valid.
    """
    if contact.cone not in _CONES:
        raise ConfigError(f"{file}: contact cone '{contact.cone}'; valid: {', '.join(_CONES)}.")
    if not 0 < contact.impratio < math.inf:
        raise ConfigError(f"{file}: contact impratio is {contact.impratio}; it must be above 0.")
    spec.option.cone = _CONES[contact.cone]
    spec.option.impratio = contact.impratio
    names = [geom.name for geom in spec.geoms if geom.name]
    for pattern, condim in contact.condim.items():
        if condim not in _CONDIMS:
            raise ConfigError(
                f"{file}: contact condim of '{pattern}' is {condim}; valid: "
                f"{', '.join(map(str, _CONDIMS))}."
            )
        matching = [geom for geom in spec.geoms if fnmatchcase(geom.name, pattern)]
        if not matching:
            raise ConfigError(
                f"{file}: contact geom '{pattern}' matches no geom; {nearest(pattern, names)}"
            )
        for geom in matching:
            geom.condim = condim
