"""What a figure means nothing without: machine, versions, commit, load. Standard library only."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unilab.tune.machine import this_machine

PACKAGES = ("unilab-engine", "mujoco", "numba", "numpy", "torch")
ROOT = Path(__file__).resolve().parent.parent.parent  # of the checkout, if this is one
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DEFAULT_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Commit:
    """What code was measured.

    Attributes:
      name: short hash, or "unknown" outside a checkout.
      changed_files: tracked or new files that differ from it.
    """

    name: str
    changed_files: int

    @property
    def label(self) -> str:
        """For file names: the hash, marked where files were changed."""
        return self.name + ("-changed" if self.changed_files else "")


def header() -> dict[str, Any]:
    """Return the machine of a result, before its measurement begins."""
    machine, commit = this_machine(), this_commit()
    return {
        "id": machine_id(),
        "cpu": machine.cpu,
        "cpus": machine.cpus,
        "gpu": _gpu_with_driver(),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "commit": commit.name,
        "changed_files": commit.changed_files,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": time.strftime("%Y-%m-%d"),
    }


def machine_id() -> str:
    """Return the name of this machine in file names: readable, and the same at every call."""
    return this_machine().file_name.removesuffix(".yaml")


def this_commit(root: Path = ROOT) -> Commit:
    """Return the commit of the checkout that this package runs from."""
    name = git(root, "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None
    if name is None:
        return Commit("unknown", 0)
    # What a benchmark writes is no change of the code.
    changed = git(root, "status", "--porcelain", "--", ".", ":!benchmark/results") or ""
    return Commit(name, len(changed.splitlines()))


def last_level_cache_bytes(caches: Path = CACHES) -> int:
    """Return the size of the largest cache; 32 MiB where the system does not say."""
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text().strip()
        scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * scale)
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def git(root: Path, *arguments: str) -> str | None:
    """Return what a git command printed; None where there is no git or it failed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def package_version(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gpu_with_driver() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
