"""What every benchmark shares: the machine it ran on, fresh processes, and its result file."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parent.parent
PACKAGES = ("unilab-engine", "mujoco", "numba", "numpy", "torch")


def machine() -> dict[str, Any]:
    """Return what a figure means nothing without: CPU, cores, versions, commit, load."""
    model = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        model = found.group(1) if found else model
    except OSError:
        pass
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": _gpu(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_files": len((_git("status", "--porcelain") or "").splitlines()),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": time.strftime("%Y-%m-%d"),
    }


def fresh_processes(script: str, arguments: Sequence[str], count: int = 3) -> list[dict[str, Any]]:
    """Run ``python script --child ARGUMENTS`` `count` times, one after the other.

    Returns:
      The JSON object that each printed as its last line.
    """
    results = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, script, "--child", *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        results.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return results


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, min and max."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def write_result(name: str, header: dict[str, Any], content: dict[str, Any]) -> Path:
    """Write a result to benchmark/results/<name>.json, with the command.

    Args:
      name: of the file.
      header: what `machine` gave before the measurement began.
      content: the figures.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = " ".join(["python", *(_relative(word) for word in sys.argv)])
    path.write_text(json.dumps({"machine": header, "command": command, **content}, indent=2) + "\n")
    return path


def _relative(word: str) -> str:
    path = Path(word)
    return (
        str(path.resolve().relative_to(ROOT))
        if path.exists() and path.resolve().is_relative_to(ROOT)
        else path.name
        if path.is_absolute()
        else word
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _gpu() -> str | None:
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
