"""Whether a run has come to a halt, judged by what it writes and by its use of the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from unilab.monitor.rows import Row
from unilab.monitor.run_state import Status

# How long a run may show no progress before it counts as stalled.
STOPPED_S = 4.0  # its process is stopped by a signal: nothing can come
IDLE_S, IDLE_GAPS = 6.0, 3.0  # it uses no CPU; longer where its longest known step is longer
IDLE_UNKNOWN_S = 30.0  # the same before any step is known: the first iteration warms up
BUSY_S, BUSY_GAPS = 60.0, 10.0  # it computes: a long step, or a loop without end
BLIND_S, BLIND_GAPS = 15.0, 5.0  # its CPU use cannot be read
IDLE_CORES = 0.03
# A look that comes this much after the one before says that the monitor itself could not run: the
# machine slept, or everything was stopped. That time says nothing about the run.
BLACKOUT_S = 10.0

# Stages that are one call: inside them a run gives no sign of life.
LONG_STAGES = ("learn", "log", "checkpoint", "snapshot")


@dataclass(frozen=True)
class Stall:
    """A run that does not get on.

    Attributes:
      seconds: since its last sign of life.
      why: what its process does meanwhile, for a person.
    """

    seconds: float
    why: str


class StallDetector:
    """Watches the progress of one run.

    A sign of life is a new iteration, or a new beat (which a run gives about once a second, at the
    end of a stage). How long it may be missing depends on the longest step that is known, and on
    what the process does meanwhile.
    """

    def __init__(self) -> None:
        self._progress: tuple[int, int | None] | None = None
        self._since_s = self._looked_s = 0.0
        self._longest_s: float | None = None
        self._seen = False
        self._idle = True

    def learn(self, row: Row) -> None:
        """Take up how long the steps of a run are."""
        calls = [row.exposed_ms.get(stage, 0.0) / row.iterations for stage in LONG_STAGES]
        self._extend(max(calls) * 1e-3)
        self._seen = True

    def update(
        self, now_s: float, status: Status, age_s: float, state: str | None, cores: float | None
    ) -> Stall | None:
        """Judge this moment.

        Args:
          now_s: a clock that only grows, s.
          status: what the run says of itself.
          age_s: how old its last sign of life is by the clock of the wall; used at the first call.
          state: of its process in psutil's words; None where it cannot be seen.
          cores: CPU time over time since the last call; None where it cannot be read.
        """
        blackout_s = now_s - self._looked_s
        if self._progress is not None and blackout_s > BLACKOUT_S:
            self._since_s += blackout_s
            self._idle = True
        self._looked_s = now_s
        progress = (status.iteration, status.beats)
        if progress != self._progress:
            if self._progress is None:
                self._since_s = now_s - max(0.0, age_s)
                self._idle = cores is None or cores < IDLE_CORES
            else:
                self._extend(max(0.0, now_s - self._since_s))
                self._since_s = now_s
                self._idle = True
            self._progress = progress
        elif cores is not None:
            self._idle = self._idle and cores < IDLE_CORES
        silent_s = now_s - self._since_s
        if status.state != "running" or silent_s <= self._patience_s(status, state, cores):
            return None
        return Stall(silent_s, self._why(state, cores))

    def _extend(self, seconds: float) -> None:
        self._longest_s = max(self._longest_s or 0.0, seconds)

    def _patience_s(self, status: Status, state: str | None, cores: float | None) -> float:
        if state == "stopped":
            return STOPPED_S
        gap_s = self._longest_s
        if cores is None:
            return max(BLIND_S, BLIND_GAPS * gap_s) if gap_s is not None else BUSY_S
        if not self._idle:
            return max(BUSY_S, BUSY_GAPS * gap_s) if gap_s is not None else 5 * BUSY_S
        if gap_s is None or (status.beats is None and not self._seen):
            return IDLE_UNKNOWN_S
        return max(IDLE_S, IDLE_GAPS * gap_s)

    def _why(self, state: str | None, cores: float | None) -> str:
        if state == "stopped":
            return "its process is stopped by a signal; kill -CONT lets it go on"
        if cores is None:
            return "its process cannot be seen"
        if self._idle:
            return "its process waits and uses no CPU: a deadlock, or a device or disk that hangs"
        return "its process computes all the while: a loop without end, or a step far longer"
