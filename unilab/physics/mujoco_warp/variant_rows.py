"""The model fields in which worlds differ: their table on the device, and the rows in use."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from unilab.physics.base import I32
from unilab.physics.mujoco_warp.lanes import Lane
from unilab.physics.variants import Variants

GRAVITY = "opt.gravity"
# Derived as well, and not read by mujoco-warp as it is used here: dof_length is for sleeping only,
# bvh_aabb and the others for MuJoCo C itself.
_NOT_READ = frozenset({"dof_M0", "dof_length", "bvh_aabb", "stat.meaninertia"})


def supported_fields() -> set[str]:
    """Return the fields that can differ from world to world, or need not be there at all."""
    return {*_batched(), GRAVITY, *_NOT_READ}


def _batched() -> set[str]:
    """Return the arrays of `mujoco_warp.Model` with a leading dimension of worlds."""
    return {
        field.name
        for field in dataclasses.fields(mjw.Model)
        if getattr(field.type, "shape", ())[:1] == ("*",)
    }


class VariantRows:
    """Per-world model fields of a group, filled from a table of variants.

    The arrays are as large as the group from the start: a graph keeps their addresses, so rows are
    written in place and never swapped.

    Args:
      variants: the table; `supported_fields` has all of its fields.
      num_worlds: Ng.
      lane: where the work goes.
    """

    def __init__(self, variants: Variants, num_worlds: int, lane: Lane) -> None:
        self._lane = lane
        self._fields = [name for name in variants.fields if name in {*_batched(), GRAVITY}]
        self.batch_sizes = {name: num_worlds for name in self._fields if name != GRAVITY}
        self._tables = {
            name: torch.from_numpy(variants.stacked(name).astype(np.float32)).to(lane.device)
            for name in self._fields
        }
        self._rows: dict[str, Tensor] = {}
        self._now = np.full(num_worlds, -1, np.int32)
        self._mark: Any = None
        self._host = [lane.host_rows((num_worlds,), torch.int64) for _ in range(2)]
        self._ids = [torch.zeros(num_worlds, dtype=torch.int64, device=lane.device) for _ in "iv"]

    def attach(self, model: Any, num_worlds: int) -> None:
        """Take over the arrays of a device model made with `batch_sizes`; all are variant 0."""
        if GRAVITY in self._fields:
            model.opt.gravity = wp.zeros(num_worlds, dtype=wp.vec3)
        for name in self._fields:
            array = model.opt.gravity if name == GRAVITY else getattr(model, name)
            view, table = wp.to_torch(array), self._tables[name]
            assert view.shape == (num_worlds, *table.shape[1:]), (name, view.shape, table.shape)
            self._rows[name] = view
        self.choose(np.arange(num_worlds, dtype=np.int32), np.zeros(num_worlds, np.int32))

    def choose(self, worlds: I32, variant_ids: I32) -> None:
        """Queue new rows for the worlds (n,) whose variant (n,) is not what it was."""
        changed = self._now[worlds] != variant_ids
        worlds, variant_ids = worlds[changed], variant_ids[changed]
        count = len(worlds)
        if not count:
            return
        self._now[worlds] = variant_ids
        self._lane.passed(self._mark)  # the ids of the last time have left
        for host, device, ids in zip(self._host, self._ids, (worlds, variant_ids), strict=True):
            host[:count].numpy()[...] = ids
            self._lane.upload(device[:count], host[:count])
        self._mark = self._lane.mark()
        targets, sources = (ids[:count] for ids in self._ids)
        with self._lane.active():
            for name, rows in self._rows.items():
                rows.index_copy_(0, targets, self._tables[name].index_select(0, sources))
