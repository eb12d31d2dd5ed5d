"""Ctrl-C and SIGTERM: finish what is being done, save, end; at once where it would take long."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from unilab.runners.checkpoint import Checkpoint


class Interrupt:
    """Turns the first Ctrl-C into a request, the second into a KeyboardInterrupt.

    Where iterations are long, the first raises as well: the runner then saves `resume_point`, the
    state at the start of the iteration, and loses nothing but the part of it that was done.

    Attributes:
      requested: an interrupt has come.
      long_iterations: set by the runner.
      resume_point: state at the start of this iteration, kept where iterations are long.
    """

    def __init__(self) -> None:
        self.requested = False
        self.long_iterations = False
        self.resume_point: Checkpoint | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or self.resume_point is not None:
            raise KeyboardInterrupt
