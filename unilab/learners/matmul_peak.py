"""Times large matrix products: what the learner's networks could reach at the very most.

    python -m unilab.learners.matmul_peak [auto|cpu|cuda]

prints operations a second in float32, with TF32 where the device has it, as the learner.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch

SIZES = {"cpu": 1024, "cuda": 8192}
WARM_UP, BEST_OF, TIME_S = 2, 3, 0.15


def measure(device: torch.device) -> float:
    """Return FLOP/s of square products: the best of three rounds."""
    size = SIZES[device.type]
    a, b = torch.rand(2, size, size, device=device).unbind()
    out = torch.empty_like(a)

    def run(count: int) -> float:
        begin = perf_counter()
        for _ in range(count):
            torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return perf_counter() - begin

    run(WARM_UP)
    count = max(1, int(TIME_S / max(run(1), 1e-6)))
    return max(2.0 * size**3 * count / run(count) for _ in range(BEST_OF))


def main() -> None:
    """Print the rate of the device named on the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else "auto"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    sys.stdout.write(f"{measure(torch.device(name)):.6g}\n")


if __name__ == "__main__":
    main()
