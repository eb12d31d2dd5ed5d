"""Runs the host step of a pipeline on recorded physics: everything of a control step but physics,
policy and buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.recording import Recording
from unilab.physics.base import Physics, StateView, Ticket
from unilab.physics.variants import Variants
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import ThreadPlan
from unilab.tasks.base import BuiltTask

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


@dataclass
class ReplayTicket:
    """A step that is over when it begins."""

    group: int
    span_ns: tuple[int, int] = (0, 0)


class ReplayPhysics:
    """`Physics` that answers what was recorded, whatever it is asked.

    Writing states is as in the real backend, since that belongs to the host step; the sensors of a
    reset are left as they are, since computing them is physics.

    Args:
      recording: what to answer.
      built: the task.

    Attributes:
      step: the recorded step that the next submit answers.
    """

    def __init__(self, recording: Recording, built: BuiltTask) -> None:
        self.recording, self.step = recording, 0
        self.variants: Variants | None = None
        self.groups: tuple[slice, ...] = (slice(0, recording.num_envs),)
        self.state: F64 = recording.state[0].copy()
        self.sensors: F64 = recording.sensors[0].copy()
        self.ctrl: F64 = np.zeros(
            (recording.num_envs, built.config.physics.substeps, built.robot.model.nu)
        )
        self.rows: F64 = recording.state[0][:, -1].copy()
        self._failures = recording.failures[0]
        qvel = 1 + int(built.robot.model.nq)
        self._qpos_columns = slice(1, qvel)
        self._qvel_columns = slice(qvel, qvel + int(built.robot.model.nv))

    def submit(self, group: int, ctrl: F64 | F32) -> ReplayTicket:  # noqa: ARG002
        """Lay out the next recorded step."""
        np.copyto(self.state, self.recording.state[self.step])
        np.copyto(self.sensors, self.recording.sensors[self.step])
        np.copyto(self.rows, self.state[:, -1])
        self._failures = self.recording.failures[self.step]
        self.step = (self.step + 1) % self.recording.num_steps
        return ReplayTicket(group)

    def wait(self, ticket: Ticket) -> StateView:  # noqa: ARG002
        """Return the recorded step."""
        return StateView(self.state, self.sensors, self._failures)

    def write_state(self, env_ids: I32, qpos: F64 | None, qvel: F64 | None) -> None:
        """Set rows qpos (n, nq) and qvel (n, nv), f64."""
        rows = self.rows[env_ids]
        if qpos is not None:
            rows[:, self._qpos_columns] = qpos
        if qvel is not None:
            rows[:, self._qvel_columns] = qvel
        self.rows[env_ids] = rows

    def set_variants(self, env_ids: I32, variant_ids: I32) -> None:
        """Nothing: what is answered has been recorded."""

    def reset_sensors(self, env_ids: I32, ctrl: F64) -> None:  # noqa: ARG002
        """Show the states just written to the kernels."""
        self.state[env_ids] = self.rows[env_ids][:, None]

    def events(self, group: int) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing happens here that has not been told."""
        return ()

    def describe(self) -> str:
        """Say in a line what physics this is."""
        return f"{self.recording.num_steps} recorded steps"

    def snapshot(self) -> Mapping[str, Any]:
        """Return the state rows."""
        return {"rows": self.rows.copy()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go back to the first recorded step."""
        self.rows[:] = snapshot["rows"]
        self.step = 0

    def close(self) -> None:
        """Nothing to release."""


class HostStep:
    """The host step of one way to run it.

    Args:
      built: the task, or the task with the NumPy baseline in place of its kernel.
      physics: answers what was recorded; may be shared.
      plan: shards and threads.
      seed: of the envs' draws.
    """

    def __init__(
        self, built: BuiltTask, physics: ReplayPhysics, plan: ThreadPlan, seed: int = 1
    ) -> None:
        seam: Physics = physics
        self.physics, self.pipeline = physics, Pipeline(built, seam, plan, seed=seed)
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first recorded step."""
        self.pipeline.load_state_dict(self.physics.recording.start)

    def step(self) -> float:
        """Take the next recorded step. Returns the time of the host step, ms."""
        action = self.physics.recording.action[self.physics.step]
        timers = self.pipeline.timers
        timers.take()
        self.pipeline.submit(0, action)
        self.pipeline.finish(0)
        times = timers.take()
        return times["iteration_ms"] - times["stage/physics_ms"]

    def run(self) -> list[float]:
        """Take all recorded steps from the first on. Returns the time of each, ms."""
        self.rewind()
        return [self.step() for _ in range(self.physics.recording.num_steps)]

    def close(self) -> None:
        """Release the shards."""
        self.pipeline.close()
