"""The threads of a run: whose they are, how long they ran, and how long they waited for a core."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from unilab.runtime.thread_names import (
    COLLECTOR,
    KERNEL_POOL,
    MUJOCO_POOL,
    PHYSICS_CALLER,
    SHARD,
)

# Beginnings of a thread's name -> role. CUDA and torch's autograd name some threads themselves.
ROLES = {
    MUJOCO_POOL: "physics pool",
    PHYSICS_CALLER: "physics caller",
    COLLECTOR: "collector",
    SHARD: "kernel shards",
    KERNEL_POOL: "kernel pool",
    "cuda": "cuda",
    "pt_": "torch",
}
MAIN, UNNAMED, OTHER = "main", "torch and unnamed", "other"
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class ThreadCounters:
    """Counts of one thread since it began.

    Attributes:
      role: see `role_of`.
      cpu_s: time on a core.
      wait_s: time in which it could run and had no core; None where the system does not count it.
      voluntary, forced: context switches.
    """

    role: str
    cpu_s: float
    wait_s: float | None
    voluntary: int
    forced: int

    def since(self, before: ThreadCounters | None) -> ThreadCounters:
        """Return what has come since an earlier reading of the same thread, or since it began."""
        if before is None:
            return self
        waits = None
        if self.wait_s is not None and before.wait_s is not None:
            waits = max(0.0, self.wait_s - before.wait_s)
        return replace(
            self,
            cpu_s=max(0.0, self.cpu_s - before.cpu_s),
            wait_s=waits,
            voluntary=max(0, self.voluntary - before.voluntary),
            forced=max(0, self.forced - before.forced),
        )


def role_of(name: str, main_name: str, is_main: bool) -> str:
    """Return whose a thread is.

    A thread of the process's own name was started by the main thread in a library that names
    nothing: that is torch's pool, and threads that libraries start when they are loaded.
    """
    if is_main:
        return MAIN
    for beginning, role in ROLES.items():
        if name.startswith(beginning):
            return role
    return UNNAMED if name == main_name else OTHER


def read_threads(process: psutil.Process, root: Path = _PROC) -> dict[int, ThreadCounters]:
    """Return the counters of every thread, by its id.

    On Linux from /proc: thread times in nanoseconds, waits and switches (psutil's switches are
    those of the main thread alone). Elsewhere psutil's times, all of one unnamed role.

    Raises:
      psutil.NoSuchProcess, psutil.AccessDenied: the process has ended, or is not for us to read.
    """
    if sys.platform != "linux":
        return _read_elsewhere(process)
    folder = root / str(process.pid) / "task"
    try:
        ids = [int(name) for name in os.listdir(folder)]
        main_name = (folder / str(process.pid) / "comm").read_text().strip()
    except FileNotFoundError:
        raise psutil.NoSuchProcess(process.pid) from None
    except PermissionError:
        raise psutil.AccessDenied(process.pid) from None
    found = {}
    for tid in ids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found[tid] = _read_thread(folder / str(tid), main_name, tid == process.pid)
    return found


def _read_thread(folder: Path, main_name: str, is_main: bool) -> ThreadCounters:
    stat = _read(folder / "stat")
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 2 :].split()
    cpu_s, wait_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, None
    with contextlib.suppress(OSError, ValueError):  # a kernel without scheduler statistics
        on_core_ns, waiting_ns, _ = _read(folder / "schedstat").split()
        if int(on_core_ns):
            cpu_s, wait_s = int(on_core_ns) * 1e-9, int(waiting_ns) * 1e-9
    status = _read(folder / "status")
    return ThreadCounters(
        role=role_of(name, main_name, is_main),
        cpu_s=cpu_s,
        wait_s=wait_s,
        voluntary=_count(status, "\nvoluntary_ctxt_switches:"),
        forced=_count(status, "\nnonvoluntary_ctxt_switches:"),
    )


def _read(path: Path) -> str:
    """Read a small file of /proc with as few calls as there can be."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.read(handle, 8192).decode(errors="replace")
    finally:
        os.close(handle)


def _count(status: str, key: str) -> int:
    start = status.find(key)
    if start < 0:
        return 0
    start += len(key)
    end = status.find("\n", start)
    return int(status[start : end if end >= 0 else None])


def _read_elsewhere(process: psutil.Process) -> dict[int, ThreadCounters]:
    switches = process.num_ctx_switches()
    threads = process.threads()
    return {
        thread.id: ThreadCounters(
            role=OTHER,
            cpu_s=thread.user_time + thread.system_time,
            wait_s=None,
            voluntary=switches.voluntary if i == 0 else 0,
            forced=switches.involuntary if i == 0 else 0,
        )
        for i, thread in enumerate(threads)
    }
