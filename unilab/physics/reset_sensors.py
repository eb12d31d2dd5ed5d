"""Sensors of states that were just written, from MuJoCo C on the host, for any backend."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from mujoco import rollout

from unilab.physics.base import F64

MIN_ROWS_TO_SHARE = 6  # fewer are done before the threads have woken up


class ResetSensors:
    """Computes sensors as `mj_forward` would (bit-equal).

    It shares nothing with the physics of a step, so that a reset never queues behind one.

    Args:
      model: the compiled model.
      signature: of the state rows (`mujoco.mjtState` bits).
      num_rows: the most rows of a call.
      threads: size of its own thread pool, which sleeps between calls; 1 makes none.
    """

    def __init__(self, model: Any, signature: int, *, num_rows: int, threads: int) -> None:
        self._models = [model] * num_rows
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        num_state = mujoco.mj_stateSize(model, signature)
        self._state: F64 = np.zeros((num_rows, 1, num_state))
        self._sensors: F64 = np.zeros((num_rows, 1, model.nsensordata))
        self._alone = rollout.Rollout(nthread=0)
        self._pool = rollout.Rollout(nthread=threads) if threads > 1 else self._alone

    def compute(self, rows: F64, ctrl: F64) -> F64:
        """Return the sensors (n, 1, S) of state rows (n, nstate) with ctrl (n, 1, A).

        All are contiguous f64. The result is valid until the next call.
        """
        count = len(rows)
        shares = count >= MIN_ROWS_TO_SHARE
        (self._pool if shares else self._alone).rollout(
            self._models[:count],
            self._data if shares else self._data[:1],
            rows,
            ctrl,
            skip_checks=True,
            nstep=1,
            state=self._state[:count],
            sensordata=self._sensors[:count],
        )
        return self._sensors[:count]

    def close(self) -> None:
        """Release the threads."""
        self._pool.close()
        self._alone.close()
