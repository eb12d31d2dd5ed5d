"""A table of model variants: what every backend draws the physical properties of its envs from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.errors import ConfigError

# Envs in a row that share a startup draw, so that a thread finds the model in its cache: physics of
# 256 cart-poles with 64 variants takes 1.01 x the time of one model, and 1.09 x with runs of one.
RUN = 4
# Where a camera or a light that follows a body stands, and a figure of the viewer.
NOT_PHYSICS = frozenset({"cam_poscom0", "light_poscom0", "stat.meanmass"})


@dataclass(frozen=True)
class Variants:
    """Copies of one compiled model that differ in physical properties only.

    An env keeps its startup draw for the run and changes its reset draw with every episode.
    Variant v has startup draw v // num_reset and reset draw v % num_reset.

    Attributes:
      models: (V,) MjModel, complete: constants derived from what was drawn are recomputed.
      fields: names of all arrays that differ between any of them and the nominal model, derived
        ones included; "opt.gravity" and "stat.meaninertia" are those of `model.opt` and
        `model.stat`.
      entries: entry of the `randomization` block -> the fields that it changes.
      num_reset: reset draws; 1 where nothing is drawn at resets.
    """

    models: tuple[Any, ...]
    fields: tuple[str, ...]
    entries: Mapping[str, tuple[str, ...]]
    num_reset: int

    def ids(self, env_ids: NDArray[np.int32], draws: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the variants (n,) of envs in the episodes that begin.

        Args:
          env_ids: (n,) i32. Startup draws go round, `RUN` envs each, so that all are in use equally
            often.
          draws: (n,) u64 random bits of each env and episode.
        """
        num_startup = len(self.models) // self.num_reset
        reset = (draws % np.uint64(self.num_reset)).astype(np.int32)
        return (env_ids // RUN % num_startup) * self.num_reset + reset

    def stacked(self, field: str) -> NDArray[Any]:
        """Return a field of all variants, (V, ...), in the dtype of the model."""
        return np.stack([read_field(model, field) for model in self.models])

    def require(self, supported: Collection[str], backend: str) -> None:
        """Refuse what a backend cannot have different from env to env.

        Args:
          supported: the fields it can, or does not need; those for the eye need not be among
            them.
          backend: its name, for the error.

        Raises:
          ConfigError: names the entries, and the fields of each that are not supported.
        """
        bad = {
            entry: missing
            for entry, fields in self.entries.items()
            if (missing := [name for name in fields if name not in {*supported, *NOT_PHYSICS}])
        }
        if bad:
            named = "; ".join(f"randomization.{e} ({', '.join(m)})" for e, m in bad.items())
            raise ConfigError(
                f"physics.backend={backend} cannot draw per env: {named}; take these entries out, "
                "or use physics.backend=mujoco_cpu"
            )


def read_field(model: Any, field: str) -> NDArray[Any]:
    """Return a field of a model as an array; "opt.x" and "stat.x" are of `model.opt`, `.stat`."""
    value = model
    for part in field.split("."):
        value = getattr(value, part)
    return np.asarray(value)


def field_names(model: Any) -> tuple[str, ...]:
    """Return the names of all numeric arrays of a model, and those of its `opt` and `stat`."""
    names = [n for n in _public(model) if isinstance(getattr(model, n), np.ndarray)]
    for part in ("opt", "stat"):
        holder = getattr(model, part)
        names += [
            f"{part}.{n}" for n in _public(holder)
            if isinstance(getattr(holder, n), np.ndarray | float | int)
        ]  # fmt: skip
    return tuple(names)


def _public(holder: Any) -> list[str]:
    return [name for name in dir(holder) if not name.startswith("_")]


def changed_fields(nominal: Any, models: Collection[Any]) -> tuple[str, ...]:
    """Return the names of the arrays that are not the nominal's in some of the models."""
    return tuple(
        name
        for name in field_names(nominal)
        if any(
            not np.array_equal(read_field(nominal, name), read_field(m, name)) for m in models
        )
    )  # fmt: skip
