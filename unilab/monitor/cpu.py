"""The CPU counters of a run and of the machine at one moment, and what happened between two."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from unilab.monitor.threads import ThreadCounters, read_threads


@dataclass(frozen=True)
class Counters:
    """Counts since the start of the process or of the machine, at one moment.

    Attributes:
      time_s: of a clock that only grows.
      state: of the process, in psutil's words ("running", "sleeping", "stopped" ...).
      cpu_s: CPU time of the run's process, threads that have ended included.
      rss_bytes: resident memory.
      threads: by thread id.
      cores: ids of the cores that the run may use.
      core_busy_s, core_stolen_s: by core; stolen is what a hypervisor gave to others.
      monitor_cpu_s: CPU time of this process.
    """

    time_s: float
    state: str
    cpu_s: float
    rss_bytes: int
    threads: Mapping[int, ThreadCounters]
    cores: tuple[int, ...]
    core_busy_s: tuple[float, ...]
    core_stolen_s: tuple[float, ...]
    monitor_cpu_s: float


@dataclass(frozen=True)
class PoolUse:
    """What the threads of one role did.

    Attributes:
      threads: how many there are.
      cores: CPU time over time: 1.5 is one and a half cores.
      wait_cores: the same of the time in which they could run and no core was free; None where the
        system does not count it.
    """

    threads: int
    cores: float
    wait_cores: float | None


@dataclass(frozen=True)
class CpuUse:
    """What happened on the CPUs between two moments.

    Attributes:
      seconds: between them.
      available: cores that the run may use.
      cores: that the run used, on average.
      other_cores: of the available ones, that other processes used.
      stolen_cores: that the hypervisor withheld.
      runnable: threads of the run that wanted a core, on average; None where it is not counted.
      wait_share: of the time in which a thread of the run wanted a core, the share in which it had
        none; None where it is not counted.
      voluntary_per_s, forced_per_s: context switches of all threads: gave up the core to wait; lost
        it to another. Of the main thread alone where the system tells no more.
      per_core: busy fraction of each available core.
      pools: by role.
      rss_bytes: resident memory at the end.
      monitor_cores: that this process used.
    """

    seconds: float
    available: int
    cores: float
    other_cores: float
    stolen_cores: float
    runnable: float | None
    wait_share: float | None
    voluntary_per_s: float
    forced_per_s: float
    per_core: tuple[float, ...]
    pools: Mapping[str, PoolUse]
    rss_bytes: int
    monitor_cores: float


class CpuSampler:
    """Reads the counters of one process.

    Args:
      process: the run.
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._monitor = psutil.Process()

    def read(self) -> Counters:
        """Return the counters of this moment.

        Raises:
          psutil.NoSuchProcess: it has ended.
          psutil.AccessDenied: the system does not let us read them.
        """
        process = self._process
        with process.oneshot():
            state = process.status()
            times = process.cpu_times()
            rss_bytes = int(process.memory_info().rss)
        if state == psutil.STATUS_ZOMBIE:
            raise psutil.ZombieProcess(process.pid)
        monitor = self._monitor.cpu_times()
        busy, stolen = _core_times()
        return Counters(
            time_s=time.monotonic(),
            state=str(state),
            cpu_s=times.user + times.system,
            rss_bytes=rss_bytes,
            threads=read_threads(process),
            cores=_allowed_cores(process, len(busy)),
            core_busy_s=busy,
            core_stolen_s=stolen,
            monitor_cpu_s=monitor.user + monitor.system,
        )


def use_between(before: Counters, after: Counters) -> CpuUse:
    """Return what happened between two readings of one process."""
    seconds = max(after.time_s - before.time_s, 1e-9)
    deltas = {tid: thread.since(before.threads.get(tid)) for tid, thread in after.threads.items()}
    pools = _pools(deltas, seconds)
    waits = [pool.wait_cores for pool in pools.values() if pool.wait_cores is not None]
    cores = max(0.0, after.cpu_s - before.cpu_s) / seconds
    wait_cores = sum(waits) if waits else None
    wanted = None if wait_cores is None else cores + wait_cores
    monitor_cores = (after.monitor_cpu_s - before.monitor_cpu_s) / seconds
    busy = [after.core_busy_s[i] - before.core_busy_s[i] for i in after.cores]
    stolen = [after.core_stolen_s[i] - before.core_stolen_s[i] for i in after.cores]
    return CpuUse(
        seconds=seconds,
        available=len(after.cores),
        cores=cores,
        other_cores=max(0.0, sum(busy) / seconds - cores - monitor_cores),
        stolen_cores=max(0.0, sum(stolen) / seconds),
        runnable=wanted,
        wait_share=None if wait_cores is None or not wanted else wait_cores / wanted,
        voluntary_per_s=sum(d.voluntary for d in deltas.values()) / seconds,
        forced_per_s=sum(d.forced for d in deltas.values()) / seconds,
        per_core=tuple(min(1.0, max(0.0, b / seconds)) for b in busy),
        pools=pools,
        rss_bytes=after.rss_bytes,
        monitor_cores=monitor_cores,
    )


def _pools(deltas: Mapping[int, ThreadCounters], seconds: float) -> dict[str, PoolUse]:
    pools: dict[str, PoolUse] = {}
    for role in sorted({thread.role for thread in deltas.values()}, key=_role_order):
        members = [thread for thread in deltas.values() if thread.role == role]
        waits = [thread.wait_s for thread in members if thread.wait_s is not None]
        pools[role] = PoolUse(
            threads=len(members),
            cores=sum(thread.cpu_s for thread in members) / seconds,
            wait_cores=sum(waits) / seconds if waits else None,
        )
    return pools


def _role_order(role: str) -> tuple[bool, str]:
    return (role != "main", role)


def _core_times() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Busy and stolen seconds of each core of the machine. Time of guests is part of user time."""
    busy, stolen = [], []
    for core in psutil.cpu_times(percpu=True):
        parts = core._asdict()
        idle = ("idle", "iowait", "steal", "guest", "guest_nice")
        busy.append(sum(value for name, value in parts.items() if name not in idle))
        stolen.append(parts.get("steal", 0.0))
    return tuple(busy), tuple(stolen)


def _allowed_cores(process: psutil.Process, count: int) -> tuple[int, ...]:
    if sys.platform == "linux":
        try:
            allowed = os.sched_getaffinity(process.pid)
        except OSError:
            allowed = set(range(count))
        return tuple(i for i in sorted(allowed) if i < count) or tuple(range(count))
    return tuple(range(count))
