"""The files of a run, followed while they are being written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unilab.errors import ConfigError
from unilab.monitor.rows import Row, parse_row
from unilab.monitor.run_state import Status, parse_status
from unilab.record.metrics_file import METRICS_FILE
from unilab.record.status import read_status

# A run that is going on is read from this far before the end of its metrics.
TAIL_BYTES = 256 * 1024


class RunFiles:
    """The files of one run, followed as they grow.

    Args:
      run_dir: the run.
      whole: read the metrics from their start; else only the last TAIL_BYTES and what follows.

    Attributes:
      status: as of the last `poll`; None where it cannot be read.
      status_problem: why not.
      damaged_lines: lines of metrics that are no JSON.
    """

    def __init__(self, run_dir: Path, *, whole: bool) -> None:
        self.run_dir = run_dir
        self.status: Status | None = None
        self.status_problem: str | None = None
        self.damaged_lines = 0
        self._path = run_dir / METRICS_FILE
        self._whole = whole
        self._offset = 0
        self._inode: int | None = None
        self._iteration: int | None = None  # of the last line

    def poll(self) -> list[Row]:
        """Read the status anew, and return the rows that have come since the last call.

        A row is left out where it is not known how many iterations it is about: the first of a file
        that is not read from its start, and one after a damaged line.
        """
        try:
            self.status = parse_status(read_status(self.run_dir))
            self.status_problem = None
        except ConfigError as error:
            self.status_problem = str(error)
        rows = []
        for line in self._new_lines():
            row = None if line is None else parse_row(line, self._iteration)
            self._iteration = None if line is None else int(line["iteration"])
            if row is not None:
                rows.append(row)
        return rows

    def _new_lines(self) -> Iterator[dict[str, Any] | None]:
        """Yield the new lines; None for a damaged one."""
        try:
            with self._path.open("rb") as file:
                cut_off = self._find_start(os.fstat(file.fileno()))
                file.seek(self._offset)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break  # being written
                    self._offset += len(raw)
                    line = _parse_line(raw)
                    if not cut_off:
                        self.damaged_lines += line is None
                        yield line
                    cut_off = False
        except OSError:  # not there yet, or not for us to read: no rows
            return

    def _find_start(self, stat: os.stat_result) -> bool:
        """Set where to read from. Returns whether that is in the midst of a line."""
        if stat.st_ino == self._inode and stat.st_size >= self._offset:
            return False
        again, self._inode = self._inode is not None, stat.st_ino
        self._offset, self._iteration = 0, 0
        if again:  # a resume has written it anew, with the lines that were there
            self._offset, self._iteration = stat.st_size, None
        elif not self._whole and stat.st_size > TAIL_BYTES:
            self._offset, self._iteration = stat.st_size - TAIL_BYTES, None
            return True
        return False


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("iteration"), int) else None
