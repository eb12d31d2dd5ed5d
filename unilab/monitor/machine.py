"""The machine a figure was measured on, and whether another one is the same."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import psutil

from unilab.tune.machine import this_machine

PACKAGES = ("unilab-engine", "mujoco", "numba", "numpy", "torch")
# What makes figures comparable. Versions may differ: that they do is what one wants to compare.
IDENTITY = ("cpu", "cpus", "gpu")


def describe_machine(gpu: str | None = None) -> dict[str, Any]:
    """Return CPU, cores that may be used, GPU, system and versions, as results files have them.

    Args:
      gpu: name of the GPU in use; None takes the machine's first.
    """
    machine = this_machine()
    return {
        "cpu": machine.cpu,
        "cpus": machine.cpus,
        "gpu": gpu or machine.gpu,
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return in words in what another machine differs; empty for the same kind of machine.

    A GPU counts only by its name: other files add the driver's version to it.
    """
    found = []
    for key in IDENTITY:
        mine, other = here.get(key), there.get(key)
        if key == "gpu":
            mine, other = (None if v is None else str(v).split(",")[0] for v in (mine, other))
        if mine != other:
            found.append(f"{key} {other!s} there and {mine!s} here")
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
