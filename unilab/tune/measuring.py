"""What a search measures with: the seam between it and the machine, or a model of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from unilab.runtime.threads import ThreadPlan


class MeasureError(Exception):
    """A plan could not be measured: its process ended, hung, or refused."""


class OutOfTimeError(Exception):
    """The budget does not allow another measurement."""


class Probe(Protocol):
    """What measures. Each call is one short burst."""

    def collect(self, plan: ThreadPlan, num_envs: int) -> float:
        """Return the seconds that collecting one iteration's samples takes.

        Raises:
          MeasureError: it cannot be measured.
        """

    def update(self, threads: int, num_envs: int) -> float:
        """Return the seconds that the learner's update of one iteration takes, likewise."""


class Budget:
    """Time that may be spent.

    Args:
      seconds: in all.
      now: a clock, s.
      began: reading of the clock when the time began to run; None is now.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self.seconds, self.now = seconds, now
        self._began = now() if began is None else began

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.now() - self._began

    @property
    def left(self) -> float:
        """Seconds that remain; below 0 when it is overdrawn."""
        return self.seconds - self.spent
