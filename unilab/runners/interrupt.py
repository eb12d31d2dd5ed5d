"""Ctrl-C and SIGTERM: let the iteration finish if that is soon, else cut it short; save, end."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from unilab.runners.checkpoint import Checkpoint

# How long the iteration in progress may go on after an interrupt, and how often it is then cut
# again (a try comes to nothing while there is no state to go back to, as between two iterations).
GRACE_S, RETRY_S = 2.0, 0.5


class Interrupt:
    """Turns an interrupt into a request that the runner reads when its iteration is done.

    An iteration that is not done after 2 s, or at the second interrupt, is cut short by a
    KeyboardInterrupt; what it did is lost, and `cut_at` is the state at its start. The third
    interrupt is always a KeyboardInterrupt.

    Attributes:
      requested: an interrupt has come.
      resume_point: state at the start of this iteration; None where there is nothing to cut.
      cut_at: the resume point of the iteration that was cut short, None if none was.
    """

    def __init__(self) -> None:
        self.requested = False
        self.resume_point: Checkpoint | None = None
        self.cut_at: Checkpoint | None = None
        self._count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._cut)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._count += 1
        if self._count == 1:
            signal.setitimer(signal.ITIMER_REAL, GRACE_S, RETRY_S)
        elif self._count == 2:
            self._cut(number, frame)
        else:
            raise KeyboardInterrupt

    def _cut(self, _number: int, _frame: FrameType | None) -> None:
        if self.resume_point is not None:
            self.cut_at, self.resume_point = self.resume_point, None
            raise KeyboardInterrupt
