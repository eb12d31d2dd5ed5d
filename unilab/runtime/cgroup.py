"""Limits that a container sets: CPU time and number of threads, in both versions of cgroups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU time that this process may use, in CPUs; None where nothing limits it.

    Args:
      root: where cgroups are mounted.
      membership: the file that says which groups the process is in.
    """
    return _tightest("cpu", _read_quota, root, membership)


def free_threads(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return how many more threads may be started; None where nothing limits them."""
    return _tightest("pids", _read_pids, root, membership)


def _tightest(
    controller: str,
    read: Callable[[Path, bool], float | None],
    root: Path,
    membership: Path,
) -> float | None:
    """Smallest of what the process's group and those above it allow."""
    found = [read(folder, old) for folder, old in _folders(controller, root, membership)]
    return min((value for value in found if value is not None), default=None)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the group and of those above it, and whether they are of version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version_1 = controller in controllers.split(",")
        if controllers and not version_1:
            continue
        base = root / controller if version_1 else root
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            yield level, version_1
            if level == base:
                break


def _read_quota(folder: Path, version_1: bool) -> float | None:
    try:
        if version_1:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
        else:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_pids(folder: Path, _version_1: bool) -> float | None:
    try:
        most = (folder / "pids.max").read_text().strip()
        if most == "max":
            return None
        return max(0.0, int(most) - int((folder / "pids.current").read_text()))
    except (OSError, ValueError):
        return None
