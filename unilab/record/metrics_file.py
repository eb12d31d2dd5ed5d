"""metrics.jsonl: one line of strict JSON an iteration, readable while the run goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unilab.errors import ConfigError

METRICS_FILE = "metrics.jsonl"
# Values that JSON cannot hold are written as null, and their names are listed under this key.
NON_FINITE = "non_finite"
# Keys of a line that are no metrics.
HEADER_KEYS = ("iteration", "time_unix_s", "elapsed_s", NON_FINITE)


class MetricsFile:
    """The open end of a metrics.jsonl. Every line is handed to the system before `append` returns.

    Args:
      path: the file; made if it is not there.
      resume_iteration: None for a new run; else lines of later iterations, and a last line that was
        cut off, are removed first (by writing a new file and renaming it).

    Attributes:
      last_iteration: of the last line that is there, 0 if there is none.
      last_elapsed_s: training time at that line, s.

    Raises:
      ConfigError: a new run where lines are already there, or a damaged file.
    """

    def __init__(self, path: Path, resume_iteration: int | None) -> None:
        self.last_iteration, self.last_elapsed_s = 0, 0.0
        if resume_iteration is not None and path.exists():
            self._cut(path, resume_iteration)
        elif resume_iteration is None and path.exists() and path.stat().st_size:
            raise ConfigError(
                f"{path} already holds the metrics of a run, and a new run would mix with it; "
                "resume that run, or choose another run directory"
            )
        self._file = path.open("a", encoding="utf-8")

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. Floats may be of any value; keys must not repeat the header's."""
        bad = [k for k, v in line.items() if isinstance(v, float) and not math.isfinite(v)]
        record = {k: (None if k in bad else v) for k, v in line.items()} if bad else dict(line)
        if bad:
            record[NON_FINITE] = bad
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Make sure that the lines are on the disk, and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _cut(self, path: Path, resume_iteration: int) -> None:
        partial = path.with_name(path.name + ".partial")
        with partial.open("w", encoding="utf-8") as kept:
            for line in read_metrics(path):
                if line["iteration"] > resume_iteration:
                    break
                kept.write(json.dumps(line, allow_nan=False) + "\n")
                self.last_iteration = int(line["iteration"])
                self.last_elapsed_s = float(line.get("elapsed_s") or 0.0)
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(partial, path)


def read_metrics(path: Path | str) -> Iterator[dict[str, Any]]:
    """Read a metrics.jsonl line by line; a last line that is still being written is left out.

    Yields:
      One dict a line: "iteration", "time_unix_s", "elapsed_s" and the metrics. A value that was not
      finite is None, and its name is in the line's "non_finite" list.

    Raises:
      ConfigError: the file is not there, or a line before the last is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no metrics at {path}; give a file named {METRICS_FILE} of a run")
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = json.loads(raw)
                if not raw.endswith(b"\n") or not isinstance(line.get("iteration"), int):
                    raise ValueError("not a line of metrics")
            except (ValueError, AttributeError):
                if file.read(1):
                    raise ConfigError(
                        f"{path}, line {number}: damaged, {raw[:60]!r}; remove that line to go on"
                    ) from None
                return
            yield line
