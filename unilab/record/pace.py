"""How fast a run goes and when it will be done."""

from __future__ import annotations

from collections import deque

# Iterations that the rate is taken over.
WINDOW = 50


class Pace:
    """Rates over the last iterations, and the time left.

    Args:
      total_iterations: where the run ends.
      max_time_s: training time after which the run ends earlier, or None.
    """

    def __init__(self, total_iterations: int, max_time_s: float | None) -> None:
        self._total, self._max_time_s = total_iterations, max_time_s
        self._marks: deque[tuple[int, float, float | None]] = deque(maxlen=WINDOW + 1)

    def mark(self, iteration: int, elapsed_s: float, env_steps: float | None) -> None:
        """Note that an iteration is done, at a training time, with env steps taken in all."""
        self._marks.append((iteration, elapsed_s, env_steps))

    @property
    def env_steps_per_s(self) -> float | None:
        """Env steps a second over the window; None until two marks know them."""
        known = [(t, n) for _, t, n in self._marks if n is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])

    @property
    def eta_s(self) -> float | None:
        """Seconds left until the last iteration or the time limit, or None if unknown."""
        if not self._marks:
            return None
        last, now, _ = self._marks[-1]
        first, then, _ = self._marks[0]
        left = []
        if last >= self._total:
            return 0.0
        if last > first:
            left.append((self._total - last) * (now - then) / (last - first))
        if self._max_time_s is not None:
            left.append(max(0.0, self._max_time_s - now))
        return min(left) if left else None
