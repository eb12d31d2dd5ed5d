"""Physics on CPU threads with MuJoCo C, through `mujoco.rollout`.

Rollout zeroes the solver's warm start at each call, so nothing hidden is carried from step to step:
threads, chunks and groups never change a bit of the result. It reports no warnings; what happened
to an env is read from the time in its state (see `MujocoCpu._read_step`).

An *error* of MuJoCo (as opposed to a warning), such as a stack that overflows, cannot be caught in
a rollout: MuJoCo prints it and ends the process with exit code 1. The constructor takes one step
where such an error can be caught, so a model that is too large for its memory is refused at start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout

from unilab.errors import ConfigError, PhysicsError
from unilab.physics.base import F32, F64, FROZEN, I32, U8, UNSTABLE, StateView, Ticket
from unilab.physics.reset_sensors import ResetSensors
from unilab.physics.variants import Variants

STATE_SIGNATURE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
CTRL_SIGNATURE = int(mujoco.mjtState.mjSTATE_CTRL.value)
TIME, QPOS = 0, 1  # columns of a state row; qvel follows qpos


def _drop_warning(_message: str) -> None:
    """MuJoCo would print warnings and write MUJOCO_LOG.TXT; failures are counted as events."""


def make_pool(threads: int, *, may_pin: bool) -> rollout.Rollout:
    """Make MuJoCo's thread pool, each thread on a CPU of its own where it has all of them.

    When a step begins, one CPU is still running the caller. The scheduler then often puts two
    workers on one CPU, and takes a few ms to move one: with 2 threads on 2 CPUs a step of 10 ms
    took 10 to 20 % longer after 1.5 ms of work in the caller, and under 5 % longer with pinned
    workers. A pool that does not use every CPU is left alone: two such pools, of two processes,
    would be pinned to the same ones.

    Args:
      threads: size of the pool; 1 makes none, the caller steps by itself.
      may_pin: nothing else of this process computes at the same time.
    """
    if threads == 1:
        return rollout.Rollout(nthread=0)
    before = _thread_ids()
    pool = rollout.Rollout(nthread=threads)
    workers = _thread_ids() - before
    if may_pin and len(workers) == threads:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) == threads:
            for worker, cpu in zip(sorted(workers), cpus, strict=True):
                os.sched_setaffinity(worker, {cpu})
    return pool


def _thread_ids() -> set[int]:
    """Native ids of this process's threads; none where the system does not list them."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except FileNotFoundError:  # not on Linux
        return set()


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
      variants: copies of the model that envs may be of; see `set_variants`.

    Attributes:
      ctrl: (N, T, A) f64, for the caller to write.
      rows: (N, nstate) f64, the state that each env is in: what the next step starts from.
      failures: (N,) u8, 0 or the failure code of the last step.

    Raises:
      ConfigError: MuJoCo cannot step the model.
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
        variants: Variants | None = None,
    ) -> None:
        mujoco.set_mju_user_warning(_drop_warning)
        self.model = model
        self.groups = groups
        self.variants = variants
        self.substeps = substeps
        num_state = mujoco.mj_stateSize(model, STATE_SIGNATURE)
        self.state: F64 = np.zeros((num_envs, substeps, num_state))
        self.sensors: F64 = np.zeros((num_envs, substeps, model.nsensordata))
        self.ctrl: F64 = np.zeros((num_envs, substeps, model.nu))
        self.rows: F64 = np.zeros((num_envs, num_state))
        self.failures: U8 = np.zeros(num_envs, np.uint8)
        qvel_start = QPOS + model.nq
        self._qpos_columns = slice(QPOS, qvel_start)
        self._qvel_columns = slice(qvel_start, qvel_start + model.nv)
        self._step_s = substeps * model.opt.timestep
        self._tolerance_s = 0.5 * model.opt.timestep
        self._nominal = self._nominal_row(num_state)
        first = model if variants is None else variants.models[0]
        self._models = [[first] * (g.stop - g.start) for g in groups]
        self._group_of = np.repeat(np.arange(len(groups)), [g.stop - g.start for g in groups])
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._rollout = make_pool(threads, may_pin=not overlap)
        self._worker = ThreadPoolExecutor(1, "unilab-physics") if overlap else None
        self._told_frozen = False
        self._reset_sensors = ResetSensors(model, STATE_SIGNATURE, num_rows=num_envs)
        if not overlap:  # else a reset would queue behind another group's physics
            self._reset_sensors.share(self._rollout, self._data)

    def _nominal_row(self, num_state: int) -> F64:
        """State of a new episode: everything but qpos and qvel as MuJoCo resets it."""
        data = mujoco.MjData(self.model)
        row: F64 = np.zeros(num_state)
        mujoco.mj_getState(self.model, data, row, STATE_SIGNATURE)
        # The clock starts late enough that a state MuJoCo reset by itself (time 0) stands out.
        row[TIME] = max(1.0, 10.0 * self._step_s)
        try:
            mujoco.mj_step(self.model, data)
        except mujoco.FatalError as error:
            raise ConfigError(
                f"MuJoCo cannot step this model: {error}. If it is about memory, raise it in the "
                'MJCF file, e.g. <size memory="64M"/>'
            ) from error
        return row

    def submit(self, group: int, ctrl: F64 | F32) -> CpuTicket:
        """Start one control step of a group; ctrl (Ng, T, A) f64, contiguous, finite."""
        ticket = CpuTicket(group)
        if self._worker is None:
            self._run(ticket, ctrl)
        else:
            ticket.future = self._worker.submit(self._run, ticket, ctrl)
        return ticket

    def _run(self, ticket: CpuTicket, ctrl: F64 | F32) -> None:
        envs = self.groups[ticket.group]
        ticket.begin_ns = perf_counter_ns()
        try:
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
        except Exception as error:  # a thread's edge: it surfaces in `wait`, or in `submit`
            raise PhysicsError(
                f"MuJoCo refused to step envs [{envs.start}, {envs.stop}): {error!r}"
            ) from error
        self._read_step(envs)
        ticket.end_ns = perf_counter_ns()

    def _read_step(self, envs: slice) -> None:
        """Take over the state that a step ended in, and say what became of each env.

        On a warning MuJoCo freezes an env for the remaining substeps, and on a state that blew up
        it resets the env to time 0. So the time tells: behind the start is unstable, short of the
        end is frozen. A warning in the last substep freezes nothing and is not seen: an env that
        stays in trouble is found in its next control step, if that has two substeps or more.
        """
        rows, end, failures = self.rows[envs], self.state[envs, -1], self.failures[envs]
        elapsed_s = end[:, TIME] - rows[:, TIME]
        rows[:] = end
        failures[:] = 0
        complete_s = self._step_s - self._tolerance_s
        if not elapsed_s.min() >= complete_s:  # in this form for a NaN's sake
            failures[~(elapsed_s >= complete_s)] = FROZEN
            failures[~(elapsed_s >= -self._tolerance_s)] = UNSTABLE

    def wait(self, ticket: Ticket) -> StateView:
        """Wait for a step.

        Raises:
          PhysicsError: MuJoCo refused the call.
        """
        assert isinstance(ticket, CpuTicket)
        if ticket.future is not None:
            ticket.future.result()
        envs = self.groups[ticket.group]
        return StateView(self.state[envs], self.sensors[envs], self.failures[envs])

    def write_state(self, env_ids: I32, qpos: F64 | None, qvel: F64 | None) -> None:
        """Set rows qpos (n, nq) and qvel (n, nv), f64.

        With qpos given this is a new episode: time, activations and whatever else the state holds
        start anew. With qvel alone (a push) qpos is not touched, so it is never rounded.
        """
        # Whole rows are gathered and scattered: the cheapest form of an indexed write.
        rows = self.rows[env_ids]
        if qpos is not None:
            rows[:] = self._nominal
            rows[:, self._qpos_columns] = qpos
        if qvel is not None:
            rows[:, self._qvel_columns] = qvel
        self.rows[env_ids] = rows

    def set_variants(self, env_ids: I32, variant_ids: I32) -> None:
        """Make envs (n,) be of these variants (n,) i32 from their next step or reset on."""
        assert self.variants is not None
        for env, group, variant in zip(
            env_ids.tolist(), self._group_of[env_ids].tolist(), variant_ids.tolist(), strict=True
        ):
            self._models[group][env - self.groups[group].start] = self.variants.models[variant]

    def models_of(self, env_ids: I32) -> list[Any] | None:
        """The model of each env; None where all are of the one."""
        if self.variants is None:
            return None
        groups = self._group_of[env_ids].tolist()
        return [
            self._models[group][env - self.groups[group].start]
            for env, group in zip(env_ids.tolist(), groups, strict=True)
        ]

    def reset_sensors(self, env_ids: I32, ctrl: F64) -> None:
        """Compute the sensors of the rows just written, as `mj_forward` would (bit-equal).

        Args:
          env_ids: (n,) i32.
          ctrl: (n, 1, A) f64, contiguous, what the actuators get at the reset.
        """
        if not len(env_ids):
            return
        rows = self.rows[env_ids]
        self.sensors[env_ids] = self._reset_sensors.compute(rows, ctrl, self.models_of(env_ids))
        self.state[env_ids] = rows[:, None]

    def events(self, group: int) -> tuple[str, ...]:
        """Name the first envs whose contacts or constraints did not fit; once in a run."""
        envs = self.groups[group]
        frozen = np.flatnonzero(self.failures[envs] == FROZEN) + envs.start
        if self._told_frozen or not len(frozen):
            return ()
        self._told_frozen = True
        return (
            f"env {', '.join(map(str, frozen[:8]))}: MuJoCo stopped within the control step, most "
            "often as contacts and constraints outgrew the model's memory; the episode ends as a "
            'failure (counted as failure/frozen). If it goes on: <size memory="64M"/> in the MJCF',
        )

    def describe(self) -> str:
        """Say what physics runs on."""
        return f"MuJoCo C {mujoco.__version__} on {len(self._data)} CPU threads"

    def snapshot(self) -> Mapping[str, Any]:
        """Return the state rows; nothing else is carried between steps."""
        return {"rows": self.rows.copy()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
          PhysicsError: it is of another backend, model or number of envs.
        """
        if "rows" not in snapshot:
            raise PhysicsError("snapshot is of another physics backend; this run is on mujoco_cpu")
        rows = np.asarray(snapshot["rows"])
        if rows.shape != self.rows.shape:
            raise PhysicsError(f"snapshot has state {rows.shape}, this run {self.rows.shape}")
        self.rows[:] = rows
        self.state[:] = rows[:, None]

    def close(self) -> None:
        """Release the threads, when the step in flight is finished. May be called twice."""
        if self._worker is not None:
            self._worker.shutdown(wait=True)
            self._worker = None
        if self._rollout.rollout_ is not None:
            self._rollout.close()
            self._reset_sensors.close()
