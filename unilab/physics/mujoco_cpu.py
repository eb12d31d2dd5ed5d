"""Physics on CPU threads with MuJoCo C, through `mujoco.rollout`.

Rollout zeroes the solver's warm start at each call, so nothing hidden is carried from step to step:
threads, chunks and groups never change a bit of the result. It reports no warnings; what happened
to an env is read from the time in its state (see `MujocoCpu.wait`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout

from unilab.errors import PhysicsError
from unilab.physics.base import F64, FROZEN, I32, U8, UNSTABLE, StateView

STATE_SIGNATURE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
CTRL_SIGNATURE = int(mujoco.mjtState.mjSTATE_CTRL.value)
TIME, QPOS = 0, 1  # columns of a state row; qvel follows qpos
_RESET_ROWS = 64  # rows of one reset_sensors call


class CpuTicket:
    """A group's step in flight, or done when nothing overlaps."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.future: Future[None] | None = None
        self.begin_ns = self.end_ns = 0

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the physics of this step began and ended."""
        return self.begin_ns, self.end_ns


class MujocoCpu:
    """`Physics` on CPU threads.

    Args:
      model: the compiled model.
      num_envs: N.
      groups: env range of each group; together they cover [0, N).
      substeps: T, solver steps a control step.
      threads: size of MuJoCo's thread pool; 1 runs on the thread that calls.
      overlap: run physics on a thread of its own, so that submit returns at once.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_envs: int,
        groups: tuple[slice, ...],
        substeps: int,
        threads: int,
        overlap: bool,
    ) -> None:
        # MuJoCo would print warnings and write MUJOCO_LOG.TXT; failures are counted as events.
        mujoco.set_mju_user_warning(lambda _message: None)
        self.model = model
        self.groups = groups
        self.substeps = substeps
        num_state = mujoco.mj_stateSize(model, STATE_SIGNATURE)
        self.state: F64 = np.zeros((num_envs, substeps, num_state))
        self.sensors: F64 = np.zeros((num_envs, substeps, model.nsensordata))
        self.rows: F64 = np.zeros((num_envs, num_state))  # the state each env is in
        self.failures: U8 = np.zeros(num_envs, np.uint8)
        self._step_s = substeps * model.opt.timestep
        self._tolerance_s = 0.5 * model.opt.timestep
        self._nominal = self._nominal_row(num_state)
        self._models = [[model] * (g.stop - g.start) for g in groups]
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._rollout = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._worker = ThreadPoolExecutor(1, "unilab-physics") if overlap else None
        self._make_reset_buffers(num_state)

    def _nominal_row(self, num_state: int) -> F64:
        """State of a new episode: everything but qpos and qvel as MuJoCo resets it."""
        data = mujoco.MjData(self.model)
        row: F64 = np.zeros(num_state)
        mujoco.mj_getState(self.model, data, row, STATE_SIGNATURE)
        # The clock starts late enough that a state MuJoCo reset by itself (time 0) stands out.
        row[TIME] = max(1.0, 10.0 * self._step_s)
        return row

    def _make_reset_buffers(self, num_state: int) -> None:
        # Its own rollout object and data: a reset must not queue behind another group's physics.
        self._reset_rollout = rollout.Rollout(nthread=0)
        self._reset_data = [mujoco.MjData(self.model)]
        self._reset_state: F64 = np.zeros((_RESET_ROWS, 1, num_state))
        self._reset_sensors: F64 = np.zeros((_RESET_ROWS, 1, self.model.nsensordata))

    def submit(self, group: int, ctrl: F64) -> CpuTicket:
        """Start one control step of a group; ctrl (Ng, T, A) f64, contiguous, finite."""
        ticket = CpuTicket(group)
        if self._worker is None:
            self._run(ticket, ctrl)
        else:
            ticket.future = self._worker.submit(self._run, ticket, ctrl)
        return ticket

    def _run(self, ticket: CpuTicket, ctrl: F64) -> None:
        envs = self.groups[ticket.group]
        ticket.begin_ns = perf_counter_ns()
        self._rollout.rollout(
            self._models[ticket.group],
            self._data,
            self.rows[envs],
            ctrl,
            skip_checks=True,
            nstep=self.substeps,
            state=self.state[envs],
            sensordata=self.sensors[envs],
        )
        ticket.end_ns = perf_counter_ns()

    def wait(self, ticket: CpuTicket) -> StateView:
        """Wait for a step and say what became of each env.

        On a warning MuJoCo freezes an env for the remaining substeps, and on a state that blew up
        it resets the env to time 0. So the time tells: behind the start is unstable, short of the
        end is frozen.

        Raises:
          PhysicsError: MuJoCo refused the call.
        """
        if ticket.future is not None:
            ticket.future.result()
        envs = self.groups[ticket.group]
        end = self.state[envs, -1, TIME]
        start = self.rows[envs, TIME]
        failures = self.failures[envs]
        failures[:] = 0
        failures[end < start + self._step_s - self._tolerance_s] = FROZEN
        failures[~(end >= start - self._tolerance_s)] = UNSTABLE
        self.rows[envs] = self.state[envs, -1]
        return StateView(self.state[envs], self.sensors[envs], failures)

    def write_state(self, env_ids: I32, qpos: F64 | None, qvel: F64 | None) -> None:
        """Set rows qpos (n, nq) and qvel (n, nv), f64.

        With qpos given this is a new episode: time, activations and whatever else the state holds
        start anew. With qvel alone (a push) qpos is not touched, so it is never rounded.
        """
        nq, nv = self.model.nq, self.model.nv
        if qpos is not None:
            self.rows[env_ids] = self._nominal
            self.rows[env_ids, QPOS : QPOS + nq] = qpos
        if qvel is not None:
            self.rows[env_ids, QPOS + nq : QPOS + nq + nv] = qvel

    def reset_sensors(self, env_ids: I32, ctrl: F64) -> None:
        """Compute the sensors of the rows just written, as `mj_forward` would (bit-equal).

        Args:
          env_ids: (n,) i32.
          ctrl: (n, 1, A) f64, what the actuators get at the reset.
        """
        for first in range(0, len(env_ids), _RESET_ROWS):
            ids = env_ids[first : first + _RESET_ROWS]
            count = len(ids)
            rows = self.rows[ids]
            self._reset_rollout.rollout(
                [self.model] * count,
                self._reset_data,
                rows,
                np.ascontiguousarray(ctrl[first : first + count]),
                skip_checks=True,
                nstep=1,
                state=self._reset_state[:count],
                sensordata=self._reset_sensors[:count],
            )
            self.state[ids] = rows[:, None]
            self.sensors[ids] = self._reset_sensors[:count]

    def snapshot(self) -> Mapping[str, Any]:
        """Return the state rows; nothing else is carried between steps."""
        return {"rows": self.rows.copy()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
          PhysicsError: it is of another model or number of envs.
        """
        rows = np.asarray(snapshot["rows"])
        if rows.shape != self.rows.shape:
            raise PhysicsError(f"snapshot has state {rows.shape}, this run {self.rows.shape}")
        self.rows[:] = rows

    def close(self) -> None:
        """Release the threads."""
        if self._worker is not None:
            self._worker.shutdown(wait=True)
            self._worker = None
        if self._rollout.rollout_ is not None:
            self._rollout.close()
            self._reset_rollout.close()
