"""The seam between physics and the rest: what a backend takes, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilab.physics.variants import Variants

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

# Failure codes of a backend; the kernel adds its own (diverged, bad_action).
UNSTABLE = 1  # MuJoCo reset the env by itself: the state blew up
# Contact or constraint memory full, or a bad ctrl: MuJoCo C stopped stepping the env, mujoco-warp
# left constraints out.
FROZEN = 2


@dataclass(frozen=True)
class StateView:
    """What one control step of a group produced. Valid until the group's next submit.

    Sensors are those of the state before the last integration, as in MuJoCo's own order.

    Attributes:
      state: (Ng, T, nstate) rows after each substep: time, qpos, qvel, act, ... On a GPU T is 1:
        f32 rows after the last substep.
      sensors: (Ng, T, S) sensor rows of each substep. On a GPU T is 1: f32, already reduced.
      failures: (Ng,) u8, 0 or a failure code. An env that failed is to be written anew before its
        next step.
    """

    state: F64 | F32
    sensors: F64 | F32
    failures: U8


class Ticket(Protocol):
    """A group's step in flight."""

    group: int

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the physics of this step began and ended, `perf_counter_ns`."""


class Physics(Protocol):
    """Batched physics, stepped by groups of envs.

    Attributes:
      groups: the env range of each group.
      state: (N, T, nstate), what the kernels read; a group's rows change between its submit and
        its wait. f64 from MuJoCo C, f32 from a GPU.
      sensors: (N, T, S), likewise.
      ctrl: (N, T, A), where the kernels write; T is 1 where ctrl stays the same in all substeps of
        a control step. `submit` takes a group's rows of it without a copy.
      variants: what envs may differ in; None: all are of one model.
    """

    groups: tuple[slice, ...]
    variants: Variants | None

    @property
    def state(self) -> F64 | F32: ...

    @property
    def sensors(self) -> F64 | F32: ...

    @property
    def ctrl(self) -> F64 | F32: ...

    def submit(self, group: int, ctrl: F64 | F32) -> Ticket:
        """Start one control step of a group with ctrl (Ng, T, A)."""

    def wait(self, ticket: Ticket) -> StateView:
        """Wait for a step and return what it produced."""

    def write_state(self, env_ids: I32, qpos: F64 | None, qvel: F64 | None) -> None:
        """Set rows (n, nq) and (n, nv). With qpos given, everything else is as in a new episode."""

    def set_variants(self, env_ids: I32, variant_ids: I32) -> None:
        """Make envs (n,) be of these rows of `variants` from their next step or reset on.

        None of them is in a step in flight. At the start every env is of variant 0.
        """

    def reset_sensors(self, env_ids: I32, ctrl: F64) -> None:
        """Fill the state and sensor rows of envs just written, without stepping them.

        Never waits for a step of another group. ctrl (n, 1, A) f64, contiguous.
        """

    def events(self, group: int) -> tuple[str, ...]:
        """Return what a person should know of the group's last step, once each."""

    def describe(self) -> str:
        """Say in a line what physics runs on."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return all that a restart needs, as arrays."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""

    def close(self) -> None:
        """Release threads. May be called twice."""
