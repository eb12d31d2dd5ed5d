"""Measures in a process of its own: what a setting breaks there is a line in the table here."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from unilab.config import RunConfig, save_resolved
from unilab.errors import ConfigError, UnilabError
from unilab.runtime.threads import ThreadPlan
from unilab.tune.measuring import MeasureError

START_TIMEOUT_S, TIMEOUT_S = 180.0, 60.0
_SHOWN_LINES = 3  # of what a process that ended said last


class ProcessProbe:
    """A `Probe` that runs the real task in a child process, started anew where it ended.

    Use it as a context manager.

    Args:
      config: the run's config.
      burst_s: about how long one measurement takes, s.
      command: arguments that start the child; it gets the config's file and `burst_s` as well.

    Attributes:
      device: kind of the learner's device, "cpu" or "cuda".
      layer: Numba's threading layer that parallel kernels run on; None where there is none.
      stages: exposed ms per control step by stage, of each plan's last burst.
    """

    def __init__(
        self,
        config: RunConfig,
        burst_s: float,
        command: tuple[str, ...] = (sys.executable, "-m", "unilab.tune.worker"),
    ) -> None:
        self.config, self.burst_s, self.command = config, burst_s, command
        self.device = ""
        self.layer: str | None = None
        self.stages: dict[ThreadPlan, dict[str, float]] = {}
        self._child: subprocess.Popen[str] | None = None
        self._said: IO[str] | None = None

    def __enter__(self) -> ProcessProbe:
        self._folder = tempfile.TemporaryDirectory(prefix="unilab-tune-")
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def collect(self, plan: ThreadPlan, num_envs: int) -> float:
        """Return the seconds that collecting one iteration's samples takes.

        Raises:
          MeasureError: it cannot be measured.
        """
        answer = self._ask({"measure": "collect", "plan": asdict(plan), "num_envs": num_envs})
        self.stages[plan] = answer["stages"]
        return float(answer["seconds"])

    def update(self, threads: int, num_envs: int) -> float:
        """Return the seconds that the learner's update of one iteration takes, likewise."""
        answer = self._ask({"measure": "update", "threads": threads, "num_envs": num_envs})
        return float(answer["seconds"])

    def _start(self) -> None:
        folder = Path(self._folder.name)
        save_resolved(self.config, folder / "config.yaml")
        self._said = (folder / "stderr").open("w+", errors="replace")
        self._child = subprocess.Popen(
            [*self.command, str(folder / "config.yaml"), str(self.burst_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
        )
        try:
            hello = self._read(START_TIMEOUT_S)
        except MeasureError as error:
            raise UnilabError(f"the measuring process did not start: {error}") from None
        if "config" in hello:
            raise ConfigError(hello["config"])
        if "error" in hello:
            raise UnilabError(f"the measuring process cannot build the task: {hello['error']}")
        self.device, self.layer = hello["device"], hello["layer"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `_read` says how
            self._child.stdin.write(json.dumps(request) + "\n")
        answer = self._read(TIMEOUT_S)
        problem = answer.get("config") or answer.get("error")
        if problem:
            raise MeasureError(problem)
        return answer

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """Wait for an answer; a child that has none is stopped."""
        assert self._child is not None
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], timeout_s)
        line = self._child.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if ready:
            code = self._child.wait()
            reason = f"the process ended with code {code}{self._last_words()}"
        else:
            reason = f"no answer within {timeout_s:.0f} s"
        self._stop()
        raise MeasureError(reason)

    def _last_words(self) -> str:
        assert self._said is not None
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().splitlines() if line.strip()]
        return "".join(f" | {line}" for line in lines[-_SHOWN_LINES:])

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        if self._said is not None:
            self._said.close()
            self._said = None
