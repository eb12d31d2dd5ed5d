"""Lines of metrics.jsonl: stage times and steps, one by one and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unilab.monitor.json_values import number


@dataclass(frozen=True)
class Row:
    """One line of metrics. Times are sums over the iterations since the line before.

    Attributes:
      iterations: how many those are.
      exposed_ms: by stage; they add up to iteration_ms.
      busy_ms: by resource.
    """

    iteration: int
    iterations: int
    unix_s: float
    elapsed_s: float
    env_steps: float | None
    episode_return: float | None
    iteration_ms: float
    exposed_ms: Mapping[str, float]
    busy_ms: Mapping[str, float]


@dataclass
class StageTotals:
    """Sums of rows.

    Attributes:
      iterations: in the sums.
      iteration_ms, exposed_ms, busy_ms: sums, ms.
    """

    iterations: int = 0
    iteration_ms: float = 0.0
    exposed_ms: dict[str, float] = field(default_factory=dict)
    busy_ms: dict[str, float] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add the iterations of a row."""
        self.iterations += row.iterations
        self.iteration_ms += row.iteration_ms
        for sums, values in ((self.exposed_ms, row.exposed_ms), (self.busy_ms, row.busy_ms)):
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value

    def per_iteration(self) -> StageTotals:
        """The same, for one iteration."""
        count = max(1, self.iterations)
        return StageTotals(
            min(1, self.iterations),
            self.iteration_ms / count,
            {name: value / count for name, value in self.exposed_ms.items()},
            {name: value / count for name, value in self.busy_ms.items()},
        )


def parse_row(line: Mapping[str, Any], before: int | None) -> Row | None:
    """Return a line of metrics as a row; None where it does not follow the one `before` it."""
    iteration = int(line["iteration"])
    if before is None or iteration <= before:
        return None
    exposed = _group(line, "stage/")
    return Row(
        iteration=iteration,
        iterations=iteration - before,
        unix_s=number(line.get("time_unix_s")) or 0.0,
        elapsed_s=number(line.get("elapsed_s")) or 0.0,
        env_steps=number(line.get("counter/env_steps")),
        episode_return=number(line.get("episode/return")),
        iteration_ms=number(line.get("iteration_ms")) or sum(exposed.values()),
        exposed_ms=exposed,
        busy_ms=_group(line, "busy/"),
    )


def rate(rows: Sequence[Row]) -> float | None:
    """Return env steps a second over rows, by the run's own clock; None if they do not tell."""
    known = [(row.elapsed_s, row.env_steps) for row in rows if row.env_steps is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _group(line: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        key.removeprefix(prefix).removesuffix("_ms"): value
        for key, raw in line.items()
        if key.startswith(prefix) and (value := number(raw)) is not None
    }
