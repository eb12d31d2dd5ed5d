"""The seam between physics and the rest: what a backend takes, and what it hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unilab.physics.variants import Variants

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

# Failure codes of a backend; the kernel adds its own (diverged, bad_action).
UNSTABLE = 1  # MuJoCo reset the env by itself: the state blew up
FROZEN = 2  # MuJoCo stopped stepping the env: contact or constraint memory full, or a bad ctrl


@dataclass(frozen=True)
class StateView:
    """What one control step of a group produced. Valid until the group's next submit.

    Sensors are those of the state before the last integration, as in MuJoCo's own order.

    Attributes:
      state: (Ng, T, nstate) rows after each substep: time, qpos, qvel, act, ...
      sensors: (Ng, T, S) sensor rows of each substep.
      failures: (Ng,) u8, 0 or a failure code. An env that failed is to be written anew before its
        next step.
    """

    state: F64
    sensors: F64
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
      state: (N, T, nstate) f64, what the kernels read; a group's rows change between its submit
        and its wait.
      sensors: (N, T, S) f64, likewise.
      variants: what envs may differ in; None: all are of one model.
    """

    groups: tuple[slice, ...]
    state: F64
    sensors: F64
    variants: Variants | None

    def submit(self, group: int, ctrl: F64) -> Ticket:
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

    def snapshot(self) -> Mapping[str, Any]:
        """Return all that a restart needs, as arrays."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""

    def close(self) -> None:
        """Release threads. May be called twice."""
