"""Fresh processes, one after the other, with progress and the time left."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from unilab.errors import ConfigError, UnilabError

OnProgress = Callable[[float, str], None]


def run_worker(job: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """Run one job in a fresh process.

    Args:
      job: what `unilab.bench.worker` takes, without "result".
      on_progress: called with the job's fraction and what it does.

    Raises:
      ConfigError: the job is not right.
      UnilabError: the process failed; its error went to stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "unilab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({**job, "result": str(result)}))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith("PROGRESS "):
                    _, fraction, what = line.rstrip("\n").split(" ", 2)
                    on_progress(float(fraction), what)
            code = process.wait()
        finally:  # Ctrl-C included: leave no process behind
            if process.poll() is None:
                process.kill()
                process.wait()
        if code != 0:
            raise UnilabError(f"a benchmark process ended with code {code}; its error is above")
        content: dict[str, Any] = json.loads(result.read_text())
    if "error" in content:
        raise ConfigError(content["error"])
    return content


class Stages:
    """Progress over several jobs of known relative length.

    Args:
      lengths: of each job, in any unit.
      show: called with a line to show: how far, what, time left.
    """

    def __init__(self, lengths: list[float], show: Callable[[str], None]) -> None:
        self._lengths, self._show = lengths, show
        self._done, self._job = 0.0, 0
        self._begin = monotonic()

    def within(self, name: str) -> OnProgress:
        """Return what to call with the progress of the job at hand."""

        def on_progress(fraction: float, what: str) -> None:
            self._tell(fraction, f"{name}: {what}")

        return on_progress

    def finish(self) -> None:
        """Go on to the next job."""
        self._done += self._lengths[self._job]
        self._job += 1

    def _tell(self, fraction: float, text: str) -> None:
        share = (self._done + fraction * self._lengths[self._job]) / sum(self._lengths)
        elapsed = monotonic() - self._begin
        left = f", about {elapsed * (1 / share - 1):.0f} s left" if share > 0.02 else ""
        self._show(f"{100 * share:3.0f} %  {text}{left}")
