"""Finds the run that is to be watched, and its process."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from unilab.errors import ConfigError
from unilab.monitor.run_state import Status, parse_status
from unilab.record.metrics_file import METRICS_FILE
from unilab.record.status import STATUS_FILE, read_status

# A process that began this long after the status was written has taken over the number.
CLOCK_SLACK_S = 2.0


@dataclass(frozen=True)
class Target:
    """What is watched.

    Attributes:
      run_dir: the run.
      process: that trains; None where there is none to see.
      problem: what cannot be seen of it, for a person.
      goes_on: whether the run may still write; False is a run that is over.
    """

    run_dir: Path
    process: psutil.Process | None
    problem: str | None
    goes_on: bool


def attach_to_run(run_dir: Path) -> Target:
    """Return a run, with its process where it is going on.

    Raises:
      ConfigError: the folder holds nothing that a run has written.
    """
    there = [name for name in (STATUS_FILE, METRICS_FILE) if (run_dir / name).is_file()]
    if not there:
        raise ConfigError(
            f"{run_dir} holds neither {STATUS_FILE} nor {METRICS_FILE}: nothing was trained there"
        )
    try:
        status = parse_status(read_status(run_dir))
    except ConfigError as error:
        return Target(run_dir, None, str(error), goes_on=False)
    process, problem = find_process(status)
    goes_on = process is not None or problem is not None
    return Target(run_dir, process, problem, goes_on)


def find_process(status: Status) -> tuple[psutil.Process | None, str | None]:
    """Return the process of a run, or None and why it cannot be seen; None, None if it is over."""
    if status.state != "running":
        return None, None
    host = status.setup.host
    if host is not None and host != socket.gethostname():
        return None, f"the run goes on on {host}: only its files can be read from here"
    try:
        process = psutil.Process(status.pid)
        if process.create_time() > status.time_unix_s + CLOCK_SLACK_S:
            return None, None  # the run is gone, and its number belongs to another
    except psutil.NoSuchProcess:
        return None, _hidden(status.pid)
    except psutil.AccessDenied:
        return None, f"process {status.pid} is not ours to read: CPU figures are missing"
    return process, None


def _hidden(pid: int) -> str | None:
    """Say so where a process is there, and the system hides it from this user."""
    try:
        os.kill(pid, 0)  # sends nothing; asks whether it could
    except PermissionError:
        return f"process {pid} of another user is hidden from this one: CPU figures are missing"
    except OSError:
        pass
    return None


def attach_to_pid(pid: int) -> Target:
    """Return the run that a process trains.

    A run keeps its metrics open, which tells its directory; after training, the status files of
    the runs below the process's working directory do.

    Raises:
      ConfigError: no such process, no permission, or no run.
    """
    try:
        process = psutil.Process(pid)
        opened = [Path(file.path) for file in process.open_files()]
        folder = Path(process.cwd())
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        raise ConfigError(
            f"--pid {pid}: there is no such process; give that of `unilab train`, or --run latest"
        ) from None
    except psutil.AccessDenied:
        raise ConfigError(
            f"--pid {pid}: the process belongs to {_owner(pid)}, and its open files may not be "
            "read; give its run directory with --run, or watch as that user"
        ) from None
    for path in opened:
        if path.name == METRICS_FILE:
            return Target(path.parent, process, None, goes_on=True)
    for path in sorted(folder.glob(f"runs/*/*/{STATUS_FILE}"), reverse=True):
        with contextlib.suppress(ConfigError):
            status = parse_status(read_status(path.parent))
            if status.pid == pid and process.create_time() <= status.time_unix_s + CLOCK_SLACK_S:
                return Target(path.parent, process, None, goes_on=True)
    raise ConfigError(
        f"--pid {pid}: the process trains nothing (yet): {command[:200] or 'a kernel thread'}; "
        "give that of `unilab train` once it has said where its run is, or use --run"
    )


def _owner(pid: int) -> str:
    try:
        return str(psutil.Process(pid).username())
    except (psutil.Error, KeyError):
        return "another user"
