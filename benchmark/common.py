"""What the scripts here share: the machine they ran on, fresh processes, and their result files."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unilab.bench.machine import header

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parent.parent
os.environ.setdefault("UNILAB_NO_TUNED", "1")  # figures must not depend on what a user tuned


def machine() -> dict[str, Any]:
    """Return what a figure means nothing without: CPU, cores, versions, commit, load."""
    return header()


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


def show(figures: dict[str, float], digits: int = 3) -> str:
    """Return a spread as "median (min-max)"."""
    return (
        f"{figures['median']:.{digits}f} ({figures['min']:.{digits}f}-{figures['max']:.{digits}f})"
    )


def write_result(
    name: str, header: dict[str, Any], content: dict[str, Any], folder: Path = RESULTS
) -> Path:
    """Write a result to <folder>/<name>.json, with the command.

    Args:
      name: of the file.
      header: what `machine` gave before the measurement began.
      content: the figures.
      folder: where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    command = " ".join(["python", *(_relative(word) for word in sys.argv)])
    path.write_text(json.dumps({"machine": header, "command": command, **content}, indent=2) + "\n")
    return path


def _relative(word: str) -> str:
    key, equals, value = word.partition("=")
    if equals and value:
        return f"{key}={_relative(value)}"
    path = Path(word)
    return (
        str(path.resolve().relative_to(ROOT))
        if path.exists() and path.resolve().is_relative_to(ROOT)
        else path.name
        if path.is_absolute()
        else word
    )
