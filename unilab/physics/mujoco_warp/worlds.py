"""One group of envs on the device: its model, its data, its graph, and rows for the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from numpy.typing import NDArray
from torch import Tensor

from unilab.physics.base import F64, I32
from unilab.physics.contact_sizes import ContactSizes
from unilab.physics.mujoco_warp.kernels import (
    begin_worlds,
    gather_sensors,
    gather_state,
    load_ctrl,
    set_qvel,
)
from unilab.physics.mujoco_warp.lanes import Lane, Launch
from unilab.physics.mujoco_warp.variant_rows import VariantRows
from unilab.physics.variants import Variants

# What a step hands to the next. The warm start is a guess that the solver begins with: it changes a
# result by rounding.
CARRIED = ("time", "qpos", "qvel", "qacc_warmstart")


@dataclass(frozen=True)
class HostRows:
    """What a group exchanges with the host, all pinned where the device is a GPU.

    Attributes:
      ctrl: (Ng, T, A) f32; T is 1 where ctrl stays the same in all substeps.
      state: (Ng, 1 + nq + nv) f32.
      sensors: (Ng, S) f32.
      overflow: (Ng,) i32.
      worst: (2,) i32, most constraint rows of an env, contacts of all envs of the group.
    """

    ctrl: Tensor
    state: Tensor
    sensors: Tensor
    overflow: Tensor
    worst: Tensor


class _Stage:
    """Rows on their way to the device. One for each kind of write, so that two never meet."""

    def __init__(self, lane: Lane, num_worlds: int, nq: int, nv: int) -> None:
        self._lane = lane
        self._mark: Any = None
        shapes = ((num_worlds,), (num_worlds, max(nq, 1)), (num_worlds, nv))
        dtypes = (torch.int32, torch.float32, torch.float32)
        self._host = [lane.host_rows(s, d) for s, d in zip(shapes, dtypes, strict=True)]
        with lane.active():
            self.arrays = [
                wp.zeros(s, dtype=d) for s, d in zip(shapes, (int, float, float), strict=True)
            ]
            self._device = [wp.to_torch(a) for a in self.arrays]

    def send(self, *parts: Any) -> None:
        """Queue the copy of (ids, qpos, qvel), each (n, ...) or None."""
        self._lane.passed(self._mark)  # the rows of the last time have left
        for host, device, part in zip(self._host, self._device, parts, strict=True):
            if part is not None:
                count = len(part)
                host[:count].numpy()[...] = part  # f64 becomes f32 here
                self._lane.upload(device[:count], host[:count])
        self._mark = self._lane.mark()


class Worlds:
    """Ng worlds of one model.

    Args:
      model: the compiled model.
      substeps: solver steps of a control step.
      sizes: capacity for contacts and constraint rows.
      takes_max: (S,) bool, sensors whose largest value over the substeps counts.
      start_s: clock of a new episode, s.
      lane: where the work goes.
      rows: where the host writes and reads.
      variants: models that the worlds may be of; all begin as the first.

    Raises:
      NotImplementedError: mujoco-warp lacks a feature that the model uses.
    """

    def __init__(
        self,
        model: Any,
        *,
        substeps: int,
        sizes: ContactSizes,
        takes_max: Any,
        start_s: float,
        lane: Lane,
        rows: HostRows,
        variants: Variants | None = None,
    ) -> None:
        self.lane, self.rows = lane, rows
        self._substeps, self._start_s = substeps, start_s
        self.num_worlds, self._num_sensors = len(rows.ctrl), int(model.nsensordata)
        count = self.num_worlds
        with lane.active():
            self.variants = None if variants is None else VariantRows(variants, count, lane)
            sizes_of = {} if self.variants is None else self.variants.batch_sizes
            self.model = mjw.put_model(model, batch_sizes=sizes_of)
            if self.variants is not None:
                self.variants.attach(self.model, count)
            if lane.device != "cpu" and not wp.is_conditional_graph_supported():
                self.model.opt.graph_conditional = False
            self.model.opt.warn_overflow = 0  # printed from the device; `rows.overflow` tells
            self.data = mjw.make_data(
                model, self.num_worlds, nconmax=sizes.contacts, njmax=sizes.constraints
            )
            self._ctrl = wp.zeros(tuple(rows.ctrl.shape), dtype=float)
            self._state = wp.zeros(tuple(rows.state.shape), dtype=float)
            self._sensors = wp.zeros((self.num_worlds, max(self._num_sensors, 1)), dtype=float)
            self._worst = wp.zeros(2, dtype=int)
            self._takes_max: Any = wp.array(np.append(takes_max, False), dtype=bool)
        self._resets = _Stage(lane, self.num_worlds, model.nq, model.nv)
        self._pushes = _Stage(lane, self.num_worlds, 0, model.nv)
        self._ctrl_view = wp.to_torch(self._ctrl)
        self._downloads = [
            (rows.state, wp.to_torch(self._state)),
            (rows.overflow, wp.to_torch(self.data.overflow)),
            (rows.worst, wp.to_torch(self._worst)),
        ]
        if self._num_sensors:
            self._downloads.append((rows.sensors, wp.to_torch(self._sensors)))
        self.launch: Launch = self.run_eagerly

    def submit(self) -> None:
        """Queue one control step with `rows.ctrl`; the results come to the other rows."""
        self.lane.upload(self._ctrl_view, self.rows.ctrl)
        self.lane.begin()
        self.launch()
        self.lane.download(self._downloads)

    def run_eagerly(self) -> None:
        """Launch the kernels of a control step one by one; a graph is a recording of this."""
        with self.lane.active():
            self.queue_step()

    def queue_step(self) -> None:
        """Queue all solver steps of a control step, and the packing of its results."""
        data, shape = self.data, (self.num_worlds, max(self._num_sensors, 1))
        data.overflow.zero_()  # so that it says what happened in this step
        self._worst.zero_()
        for step in range(self._substeps):
            if step < self._ctrl.shape[1]:
                wp.launch(load_ctrl, dim=data.ctrl.shape, inputs=[step, self._ctrl, data.ctrl])
            mjw.step(self.model, data)
            wp.launch(
                gather_sensors,
                dim=shape,
                inputs=[step == 0, self._takes_max, data.sensordata, data.nefc, data.nacon,
                        self._sensors, self._worst],
            )  # fmt: skip
        wp.launch(
            gather_state,
            dim=self._state.shape,
            inputs=[data.time, data.qpos, data.qvel, self._state],
        )

    def begin(self, worlds: I32, qpos: F64, qvel: F64) -> None:
        """Queue new episodes in some worlds: ids (n,), qpos (n, nq), qvel (n, nv)."""
        self._resets.send(worlds, qpos, qvel)
        ids, positions, velocities = self._resets.arrays
        data = self.data
        with self.lane.active():
            wp.launch(
                begin_worlds,
                dim=(len(worlds), max(positions.shape[1], velocities.shape[1])),
                inputs=[ids, self._start_s, positions, velocities, data.time, data.qpos,
                        data.qvel, data.qacc_warmstart],
            )  # fmt: skip

    def push(self, worlds: I32, qvel: F64) -> None:
        """Queue new velocities (n, nv) of some worlds."""
        self._pushes.send(worlds, None, qvel)
        ids, _, velocities = self._pushes.arrays
        with self.lane.active():
            wp.launch(
                set_qvel,
                dim=(len(worlds), velocities.shape[1]),
                inputs=[ids, velocities, self.data.qvel],
            )

    def read(self) -> dict[str, NDArray[np.float32]]:
        """Return what a step hands to the next, on the host, after all that is queued."""
        with self.lane.active():
            found = {name: self._view(name).cpu().numpy().copy() for name in CARRIED}
        self.lane.finish()
        return found

    def write(self, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Set what `read` returned."""
        with self.lane.active():
            for name, value in values.items():
                self._view(name).copy_(torch.from_numpy(np.ascontiguousarray(value)))
        self.lane.finish()

    def _view(self, name: str) -> Tensor:
        view: Tensor = wp.to_torch(getattr(self.data, name))
        return view
