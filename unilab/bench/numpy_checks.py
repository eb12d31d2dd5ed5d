"""How the NumPy baseline finds envs with numbers that are not finite or far too large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.numpy_chunk import Arrays, Mask, as_slice
from unilab.tasks.base import BuiltTask
from unilab_kernels.spec import DIVERGED, DIVERGED_LIMIT

FLOAT32_LIMIT = 3.4e38  # a finite f64 beyond it has no finite f32


class Checks:
    """One reduction over all envs; single envs are looked at only where it fails.

    Args:
      built: the task.
    """

    def __init__(self, built: BuiltTask) -> None:
        model = built.robot.model
        stop = 1 + int(model.nq) + int(model.nv)
        fields = list(built.model.fields.values())
        states = {c for f in fields if f.source == "state" for c in f.columns}
        last = {c for f in fields if f.source != "state" and f.reduce == "last" for c in f.columns}
        every = {c for f in fields if f.source != "state" and f.reduce != "last" for c in f.columns}
        self._moving = slice(1, stop)
        self._blocks = [
            (array, steps, as_slice(tuple(sorted(columns))))
            for array, steps, columns in (
                ("state_in", slice(-1, None), states - set(range(1, stop))),
                ("sensor_in", slice(-1, None), last - every),
                ("sensor_in", slice(None), every),
            )
            if columns
        ]

    def state_is_good(self, views: Arrays) -> bool:
        """Say quickly whether no env failed: no sum of squares below limit^2 has one above it."""
        moving = views["state_in"][:, -1, self._moving]
        if not np.einsum("ij,ij->", moving, moving) < DIVERGED_LIMIT**2:
            return False
        blocks = (views[array][:, steps, columns] for array, steps, columns in self._blocks)
        if not all(np.einsum("itj,itj->", b, b) < FLOAT32_LIMIT**2 for b in blocks):
            return False
        return not views["failure_io"].any()

    def find_failed(self, views: Arrays) -> Mask:
        """Return (m,) bool, and mark divergence in ``failure_io``."""
        failure, moving = views["failure_io"], views["state_in"][:, -1, self._moving]
        bad = ~_below(moving, DIVERGED_LIMIT)
        for array, steps, columns in self._blocks:
            bad |= ~_below(views[array][:, steps, columns], FLOAT32_LIMIT)
        failure[bad & (failure == 0)] = DIVERGED
        failed: Mask = failure != 0
        return failed


def all_finite(results: Iterable[NDArray[np.float32]]) -> bool:
    """Say whether every number of some contiguous arrays is finite; rarely wrong, by overflow."""
    with np.errstate(over="ignore"):
        return all(np.isfinite(np.dot(flat, flat)) for flat in (r.reshape(-1) for r in results))


def finite_rows(results: Iterable[NDArray[np.float32]]) -> Mask:
    """Return (m,) bool: all numbers of the row are finite, in each array."""
    rows: Mask = np.logical_and.reduce([_below(r, FLOAT32_LIMIT) for r in results])
    return rows


def _below(values: NDArray[Any], limit: float) -> Mask:
    rows: Mask = (np.abs(values.reshape(len(values), -1)) < limit).all(axis=1)
    return rows
