"""Times of the main line and of each resource, taken without synchronising anything.

*Exposed* spans are those of the main line; they add up to the step. *Busy* time is what a resource
(physics, kernel, learner) worked, whether or not the main line was waiting for it: the difference
is what overlap hides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from time import perf_counter_ns

_NEVER = 2**63


@dataclass(frozen=True)
class Span:
    """One traced piece of work; times from `perf_counter_ns`."""

    name: str
    group: int
    begin_ns: int
    end_ns: int


class Timers:
    """Adds up times until `take`.

    Args:
      trace: keep every span as well, for a look at the overlap (costs memory).
    """

    def __init__(self, *, trace: bool = False) -> None:
        self.trace: list[Span] | None = [] if trace else None
        self._exposed: dict[str, int] = defaultdict(int)
        self._busy: dict[str, int] = defaultdict(int)
        self._busy_lock = Lock()  # busy time may be read by another thread: `take_busy`
        self._open: list[str] = []  # names of the spans the main line is in, innermost last
        self._beat: Callable[[], None] | None = None
        self._beat_due, self._beat_every = _NEVER, 0
        self._since = self._charged = perf_counter_ns()

    def watch(self, beat: Callable[[], None], every_s: float) -> None:
        """Call `beat` where a span of the main line ends, at most once in `every_s`.

        It is called by the main line itself: as long as it comes, the run is getting somewhere.
        """
        self._beat, self._beat_every = beat, int(every_s * 1e9)
        self._beat_due = perf_counter_ns()

    def span(
        self, name: str, *, busy: str | None = None, group: int = -1
    ) -> AbstractContextManager[None]:
        """Time a piece of the main line, also as busy time of a resource where given.

        Inside another span, the time is the inner one's: exposed times never count twice.
        """
        return _OpenSpan(self, name, busy, group)

    def _enter(self, name: str) -> int:
        begin = self._charge()
        self._open.append(name)
        return begin

    def _exit(self, name: str, busy: str | None, group: int, begin: int) -> None:
        end = self._charge()
        self._open.pop()
        if busy is not None:
            with self._busy_lock:
                self._busy[busy] += end - begin
        if self.trace is not None:
            self.trace.append(Span(name, group, begin, end))
        if end >= self._beat_due and self._beat is not None:
            self._beat_due = end + self._beat_every
            self._beat()

    def _charge(self) -> int:
        """Give the time since the last call to the innermost open span. Returns now."""
        now = perf_counter_ns()
        if self._open:
            self._exposed[self._open[-1]] += now - self._charged
        self._charged = now
        return now

    def add_busy(self, name: str, span_ns: tuple[int, int], group: int = -1) -> None:
        """Add what a resource worked on a thread of its own."""
        with self._busy_lock:
            self._busy[name] += span_ns[1] - span_ns[0]
        if self.trace is not None:
            self.trace.append(Span(f"busy/{name}", group, *span_ns))

    def take(self) -> dict[str, float]:
        """Return the sums in ms since the last call and start anew.

        Called inside a span, it cuts that span in two: exposed times and "other" always add up.

        Returns:
          "stage/<name>_ms" exposed, "stage/other_ms" what no span covered, "iteration_ms", and
          "busy/<resource>_ms".
        """
        now = self._charge()
        total = now - self._since
        times = {f"stage/{name}_ms": ns * 1e-6 for name, ns in self._exposed.items()}
        times["stage/other_ms"] = (total - sum(self._exposed.values())) * 1e-6
        times["iteration_ms"] = total * 1e-6
        times.update(self.take_busy())
        self._exposed.clear()
        self._since = now
        return times

    def take_busy(self) -> dict[str, float]:
        """Return the "busy/<resource>_ms" since the last call and start anew. From any thread."""
        with self._busy_lock:
            busy, self._busy = self._busy, defaultdict(int)
        return {f"busy/{name}_ms": ns * 1e-6 for name, ns in busy.items()}


class _OpenSpan(AbstractContextManager[None]):
    """A span being timed. A class, since a generator would cost several times as much."""

    __slots__ = ("_begin", "_busy", "_group", "_name", "_timers")

    def __init__(self, timers: Timers, name: str, busy: str | None, group: int) -> None:
        self._timers, self._name, self._busy, self._group = timers, name, busy, group

    def __enter__(self) -> None:
        self._begin = self._timers._enter(self._name)

    def __exit__(self, *_error: object) -> None:
        self._timers._exit(self._name, self._busy, self._group, self._begin)
