"""Sensors of states that were just written, from MuJoCo C on the host, for any backend."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from mujoco import rollout

from unilab.physics.base import F64

MIN_ROWS_TO_SHARE = 6  # fewer are done before the threads have woken up


class ResetSensors:
    """Computes sensors as `mj_forward` would (bit-equal), in the thread that calls.

    Args:
      model: the compiled model.
      signature: of the state rows (`mujoco.mjtState` bits).
      num_rows: the most rows of a call.
    """

    def __init__(self, model: Any, signature: int, *, num_rows: int) -> None:
        self._models = [model] * num_rows
        self._data = [mujoco.MjData(model)]
        num_state = mujoco.mj_stateSize(model, signature)
        self._state: F64 = np.zeros((num_rows, 1, num_state))
        self._sensors: F64 = np.zeros((num_rows, 1, model.nsensordata))
        self._alone = rollout.Rollout(nthread=0)
        self._pool: tuple[rollout.Rollout, list[Any]] | None = None

    def share(self, pool: rollout.Rollout, data: list[Any]) -> None:
        """Let a thread pool help with many rows; only where it never steps at the same time.

        Args:
          pool: it must not be called from two threads at once.
          data: a `mujoco.MjData` of each of its threads.
        """
        self._pool = pool, data

    def compute(self, rows: F64, ctrl: F64, models: list[Any] | None = None) -> F64:
        """Return the sensors (n, 1, S) of state rows (n, nstate) with ctrl (n, 1, A).

        All are contiguous f64. The result is valid until the next call.

        Args:
          rows: the states.
          ctrl: what the actuators get.
          models: (n,) the model of each row, a variant of the compiled one; None: that itself.
        """
        count = len(rows)
        pool, data = self._alone, self._data
        if self._pool is not None and count >= MIN_ROWS_TO_SHARE:
            pool, data = self._pool
        pool.rollout(
            self._models[:count] if models is None else models,
            data,
            rows,
            ctrl,
            skip_checks=True,
            nstep=1,
            state=self._state[:count],
            sensordata=self._sensors[:count],
        )
        return self._sensors[:count]

    def close(self) -> None:
        """Release what MuJoCo holds; a shared pool is not touched."""
        self._alone.close()
