"""The recorder of a run: metrics file, TensorBoard, state for a monitor, progress on the screen."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from unilab.record.metrics_file import HEADER_KEYS, METRICS_FILE, MetricsFile
from unilab.record.pace import Pace
from unilab.record.progress import Snapshot, open_view
from unilab.record.status import STATUS_FILE, State, write_status

if TYPE_CHECKING:
    from unilab.record.event_file import EventFile

ENV_STEPS, STEPS_PER_S = "counter/env_steps", "system/env_steps_per_s"
TENSORBOARD_FLUSH_S = 2.0


class Recorder:
    """Writes down every iteration of a run. Use it as a context manager, or call `close`.

    Files in the run directory: metrics.jsonl (one line an iteration, see `read_metrics`),
    stages.json (see `read_status`), tensorboard/ (event files). Names of metrics that it knows:
    counter/env_steps (env steps of the whole run so far: x axis of curves, rate), episode/return,
    episode/length_s, reward/<term>, loss/<name>, policy/<name>; and of times: stage/<name>_ms
    (spans of the main line that add up to the iteration), busy/<resource>_ms.

    Args:
      run_dir: made if it is not there.
      total_iterations: number of the last iteration.
      tensorboard: write event files too.
      max_time_s: training time after which the run will end; only the time left depends on it.
      resume_iteration: iteration of the checkpoint that the run goes on from; what was written of
        later iterations is dropped. None is a new run.
      setup: what the run is made of, for a monitor; plain JSON.
      console: where progress is shown; None is stdout.

    Attributes:
      state: "running" until closed.

    Raises:
      ConfigError: a new run in a directory that holds the metrics of another.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        total_iterations: int,
        tensorboard: bool,
        max_time_s: float | None = None,
        resume_iteration: int | None = None,
        setup: Mapping[str, Any] | None = None,
        console: Console | None = None,
    ) -> None:
        run_dir = Path(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        self.state: State = "running"
        self._status_path = run_dir / STATUS_FILE
        self._metrics = MetricsFile(run_dir / METRICS_FILE, resume_iteration)
        self._iteration = resume_iteration or 0
        self._setup = dict(setup or {})
        self._beats, self._beat_unix_s = 0, time.time()
        self._total = total_iterations
        self._pace = Pace(total_iterations, max_time_s)
        self._start = time.perf_counter() - self._metrics.last_elapsed_s
        self._events: EventFile | None = None
        self._events_due = 0.0
        if tensorboard:
            from unilab.record.event_file import EventFile  # costs 0.2 s

            self._events = EventFile(run_dir / "tensorboard", resume_iteration)
        self._status: dict[str, Any] = {}
        self._refresh_status({}, {})
        self._view = open_view(console or Console(), run_dir.name)

    @property
    def elapsed_s(self) -> float:
        """Training time of the run, s, including that before a resume."""
        return time.perf_counter() - self._start

    def write(
        self, iteration: int, metrics: Mapping[str, float], times: Mapping[str, float]
    ) -> None:
        """Write down one iteration.

        Args:
          iteration: its number; must grow from call to call.
          metrics: plain numbers by name; values that are not finite are kept as such.
          times: milliseconds by name, stage/<name>_ms and busy/<resource>_ms.
        """
        assert iteration > self._iteration, f"iteration {iteration} after {self._iteration}"
        assert self.state == "running", "the recorder is closed"
        values = {k: float(v) for k, v in metrics.items()}
        spans = {k: float(v) for k, v in times.items()}
        assert not {*values, *spans} & {*HEADER_KEYS}, "a metric is named like a header key"
        self._iteration = iteration
        elapsed_s = self.elapsed_s
        env_steps = values.get(ENV_STEPS)
        self._pace.mark(iteration, elapsed_s, env_steps)
        rate = self._pace.env_steps_per_s
        if rate is not None:
            values.setdefault(STEPS_PER_S, rate)
        now = time.time()
        header = {"iteration": iteration, "time_unix_s": now, "elapsed_s": elapsed_s}
        self._metrics.append({**header, **values, **spans})
        if self._events is not None:
            self._events.write(iteration, {**values, **spans})
            if now >= self._events_due:
                self._events.flush()
                self._events_due = now + TENSORBOARD_FLUSH_S
        self._refresh_status(values, spans)
        self._view.update(
            Snapshot(iteration, self._total, elapsed_s, self._pace.eta_s, values, spans)
        )

    def beat(self) -> None:
        """Tell a monitor that the run goes on. Takes 0.1 ms; call it about once a second.

        A file that cannot be written does not matter here: the next row of metrics says so.
        """
        if self.state != "running":
            return
        self._beats += 1
        self._beat_unix_s = time.time()
        self._status.update(beats=self._beats, beat_unix_s=self._beat_unix_s)
        with contextlib.suppress(OSError):
            write_status(self._status_path, self._status)

    def close(self, state: State = "finished") -> None:
        """Write the run's last state and close the files. Closing twice changes nothing."""
        if self.state != "running":
            return
        self.state = state
        self._view.close()
        self._metrics.close()
        if self._events is not None:
            self._events.close()
        self._status.update(state=state, time_unix_s=time.time(), eta_s=None)
        write_status(self._status_path, self._status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _refresh_status(self, values: Mapping[str, float], spans: Mapping[str, float]) -> None:
        steps = _finite(values.get(ENV_STEPS))
        self._status = {
            "state": self.state,
            "pid": os.getpid(),
            "time_unix_s": time.time(),
            "iteration": self._iteration,
            "total_iterations": self._total,
            "env_steps": None if steps is None else int(steps),
            "env_steps_per_s": _finite(values.get(STEPS_PER_S)),
            "elapsed_s": self.elapsed_s,
            "eta_s": self._pace.eta_s,
            "beats": self._beats,
            "beat_unix_s": self._beat_unix_s,
            "setup": self._setup,
            "iteration_ms": _finite(spans.get("iteration_ms")),
            "exposed_ms": _table(spans, "stage/"),
            "busy_ms": _table(spans, "busy/"),
            "counters": _table(values, "counter/"),
        }
        write_status(self._status_path, self._status)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _table(values: Mapping[str, float], prefix: str) -> dict[str, float | None]:
    return {
        key.removeprefix(prefix).removesuffix("_ms"): _finite(value)
        for key, value in values.items()
        if key.startswith(prefix)
    }
