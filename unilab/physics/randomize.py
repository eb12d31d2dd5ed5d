"""Makes variants of a compiled model by the `randomization` block of the config.

Each is a copy of the nominal model in which some arrays are changed; MuJoCo then recomputes what
it derives from them (`mj_setConst`). Nothing is recompiled, and a factor is always on the nominal.
What can go wrong is found from the ends of the ranges, before the first draw.
"""

from __future__ import annotations

import copy
import zlib
from functools import partial
from typing import Any

import mujoco
import numpy as np

from unilab.config.randomization import Entry, ModelEntry, RandomizationConfig
from unilab.physics.base import F64, I32
from unilab.physics.model_fields import FIELDS
from unilab.physics.variants import Variants, changed_fields


def check_randomization(model: Any, config: RandomizationConfig) -> None:
    """Check the entries against the model, without drawing anything.

    Raises:
      ConfigError: a pattern matches nothing; a range has no effect, or one of its ends gives a
        value that is not possible, such as a mass below 0.
    """
    for name, entry in config.model_entries():
        where = f"randomization.{name}"
        field = FIELDS[name]
        ids = field.select(model, entry, where)
        field.check(model, entry, ids, where)
        for end in (0, 1):
            changed = copy.copy(model)
            field.apply(changed, entry, ids, partial(_end, end))
            field.check_result(changed, model, ids, where)


def make_variants(
    model: Any, config: RandomizationConfig, *, seed: int, rank: int = 0
) -> Variants | None:
    """Draw the table of variants; None where the config changes nothing of the model.

    Args:
      model: the compiled model; it is not changed.
      config: the block.
      seed, rank: the same give the same table.

    Raises:
      ConfigError: see `check_randomization`.
    """
    check_randomization(model, config)
    entries = dict(config.model_entries())
    if not entries:
        return None
    selected = {
        name: FIELDS[name].select(model, entry, f"randomization.{name}")
        for name, entry in entries.items()
    }
    refresh = _Refresh(model)

    def change(base: Any, mode: str, index: int) -> Any:
        changed = copy.copy(base)
        for name, entry in entries.items():
            if entry.mode == mode:
                draw = partial(_random, (seed % 2**64, rank, zlib.crc32(name.encode()), index))
                FIELDS[name].apply(changed, entry, selected[name], draw)
        return changed

    num_startup, num_reset = config.num_variants
    models = []
    for startup in range(num_startup):
        base = change(model, "startup", startup)
        models += [refresh(change(base, "reset", reset)) for reset in range(num_reset)]
    fields = changed_fields(model, models)
    return Variants(tuple(models), fields, _sources(model, entries, selected, refresh), num_reset)


class _Refresh:
    """Recomputes what MuJoCo derives from the arrays of a model.

    `mj_setConst` of the Python package leaves `stat` as it was. The solver scales its tolerance by
    the mean inertia, so that is done here, unless the file gives one of its own; the mean size and
    the extent are for the eye alone and stay.
    """

    def __init__(self, nominal: Any) -> None:
        self._data = mujoco.MjData(nominal)
        self._computed = [
            name
            for name, value in _means(nominal).items()
            if np.isclose(getattr(nominal.stat, name), value, rtol=1e-9, atol=0.0)
        ]

    def __call__(self, model: Any) -> Any:
        mujoco.mj_setConst(model, self._data)
        means = _means(model)
        for name in self._computed:
            setattr(model.stat, name, means[name])
        return model


def _means(model: Any) -> dict[str, float]:
    """Return the statistics of a model that depend on its masses, as MuJoCo defines them."""
    return {
        "meaninertia": float(model.dof_M0.mean()),
        "meanmass": float(model.body_mass[1:].mean()),
    }


def _sources(
    model: Any,
    entries: dict[str, ModelEntry],
    selected: dict[str, I32],
    refresh: _Refresh,
) -> dict[str, tuple[str, ...]]:
    """Return for each entry the fields that it changes, found by changing them alone."""
    sources = {}
    for name, entry in entries.items():
        models = []
        for end in (0, 1):
            models.append(copy.copy(model))
            FIELDS[name].apply(models[-1], entry, selected[name], partial(_end, end))
        sources[name] = changed_fields(model, [refresh(m) for m in models])
    return sources


def _end(end: int, key: str, entry: Entry, shape: tuple[int, ...]) -> F64:
    """Return the low or the high end of a range for everything."""
    return np.full(shape, getattr(entry, key)[end], np.float64)


def _random(counters: tuple[int, ...], key: str, entry: Entry, shape: tuple[int, ...]) -> F64:
    """Draw a range, as a pure function of the counters and the key."""
    low, high = getattr(entry, key)
    seeds = np.random.SeedSequence([*counters, zlib.crc32(key.encode())])
    uniform = np.random.Generator(np.random.Philox(seeds)).random(shape)
    is_log = getattr(entry, "distribution", "uniform") == "log_uniform"
    if is_log and not key.startswith("add_"):
        return np.clip(low * (high / low) ** uniform, low, high)  # type: ignore[no-any-return]
    return low + (high - low) * uniform  # type: ignore[no-any-return]
