"""Starts a training to be watched, in a session of its own, so that it outlives the monitor."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from unilab.monitor.attach import Target

_RUN_LINE = re.compile(r"^run +(\S.*)$", re.M)
POLL_S = 0.1


class Launched:
    """A `unilab train` that the monitor has started.

    Its output goes to a file, never to a pipe that would break with the monitor. A signal from the
    terminal reaches the monitor alone, which hands Ctrl-C on.

    Args:
      words: arguments of `unilab train`.

    Attributes:
      output: the file that it prints to.
    """

    def __init__(self, words: Sequence[str]) -> None:
        handle, name = tempfile.mkstemp(prefix="unilab-train-", suffix=".log")
        self.output = Path(name)
        with os.fdopen(handle, "wb") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "unilab.cli", "train", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it goes on."""
        return self._popen.poll()

    def find(self) -> Target | None:
        """Return its run, once it has one."""
        found = _RUN_LINE.search(self.output.read_text(errors="replace"))
        if found is None:
            return None
        process = None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
        return Target(Path(found[1]), process, None, goes_on=process is not None)

    def last_line(self) -> str:
        """What it has printed last."""
        lines = self.output.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "starting ...")

    def interrupt(self) -> None:
        """Ask it to save and end, as Ctrl-C does."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end. Returns its exit code, or None when the time is up."""
        deadline = time.monotonic() + timeout_s
        while self._popen.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self._popen.poll()
