"""stages.json: where a run stands right now, for a monitor that looks in from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from unilab.errors import ConfigError

STATUS_FILE = "stages.json"
State = Literal["running", "finished", "failed", "interrupted"]


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(status, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_status(run_dir: Path | str) -> dict[str, Any]:
    """Read the state of a run, running or not.

    Returns:
      state ("running", "finished", "failed", "interrupted"), pid, time_unix_s, iteration,
      total_iterations, env_steps, env_steps_per_s, elapsed_s, eta_s; beats and beat_unix_s (a
      count that grows, at most once a second, as long as the run gets anywhere, and when it last
      did); setup (what the run is made of, see `unilab.runners.train`); iteration_ms and three
      tables of floats of the last logged row: exposed_ms (spans of the main line, a stage), busy_ms
      (a resource), counters. A number that is unknown or not finite is None. A "running" state of a
      pid that is gone was killed.

    Raises:
      ConfigError: no run writes there, or the file is damaged.
    """
    path = Path(run_dir) / STATUS_FILE
    if not path.is_file():
        raise ConfigError(f"no {STATUS_FILE} in {run_dir}; give the directory of a run")
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; a run writes it anew") from None
    if not isinstance(status, dict):
        raise ConfigError(f"{path} is not the state of a run; it holds a {type(status).__name__}")
    return status
