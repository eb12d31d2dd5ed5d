"""The machine's rate of matrix products, in a process of its own: the monitor never loads torch."""

from __future__ import annotations

import subprocess
import sys

from unilab.errors import ConfigError

TIMEOUT_S = 120.0


def measure_matmul(device: str = "auto") -> float:
    """Return the float32 operations a second of a large matrix product, on all CPUs or the GPU.

    Takes the CPUs for a second.

    Raises:
      ConfigError: it cannot be measured.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "unilab.learners.matmul_peak", device],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return float(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigError(f"--peak: matrix products cannot be timed here: {error}") from None
