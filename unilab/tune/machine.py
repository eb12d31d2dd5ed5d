"""What this machine is, as far as measured settings depend on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from unilab.config import Machine
from unilab.runtime.threads import available_cpus

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_TIMEOUT_S = 10


def this_machine() -> Machine:
    """Return processor, usable CPUs and GPU. Loads no numerical library."""
    return Machine(cpu_model(), available_cpus(), gpu_model())


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
    except OSError:  # not on Linux
        found = None
    name = found.group(1) if found else platform.processor() or platform.machine()
    return " ".join(name.split()) or "unknown processor"


def gpu_model(folder: Path = _NVIDIA) -> str | None:
    """Return the name of the first NVIDIA GPU; None where there is none, or it is hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    for path in sorted(folder.glob("*/information")):
        found = re.search(r"Model:\s*(.+)", path.read_text())
        if found:
            return found.group(1).strip()
    if shutil.which("nvidia-smi") is None:
        return None
    try:  # where the driver does not show itself under /proc, as on WSL
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return names[0].strip() if names else None
