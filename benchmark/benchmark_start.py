"""How long until something is seen: `unilab list`, and the first metrics line of `unilab train`.

Cold is with an empty kernel cache, warm with the cache that the cold start left.

    python benchmark/benchmark_start.py go1_walk
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import machine, spread, write_result

REPEATS = 3


def main() -> None:
    """Measure, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    task = parser.parse_args().task
    header = machine()
    figures: dict[str, list[float]] = {
        "list_s": [],
        "first_line_cold_s": [],
        "first_line_warm_s": [],
    }
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            figures["list_s"].append(time_to_end(["list"], folder))
            figures["first_line_cold_s"].append(time_to_first_line(task, folder))
            figures["first_line_warm_s"].append(time_to_first_line(task, folder))
    table = {name: spread(values) for name, values in figures.items()}
    for name, value in table.items():
        print(f"{name:18s} {value['median']:6.2f}  ({value['min']:.2f} to {value['max']:.2f})")
    print(f"written: {write_result(f'start_{task}', header, {'figures': table})}")


def time_to_end(words: list[str], folder: str) -> float:
    """Return how long a command takes, s."""
    begin = time.perf_counter()
    subprocess.run(command(words), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def time_to_first_line(task: str, folder: str) -> float:
    """Return how long `train` takes to its first metrics line, s; its cache is in `folder`."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command(["train", task]),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "UNILAB_CACHE_DIR": str(Path(folder) / "cache")},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("["):
            break
    took = time.perf_counter() - begin
    process.kill()
    process.communicate()
    return took


def command(words: list[str]) -> list[str]:
    """Return the argument list of a unilab command."""
    return [sys.executable, "-m", "unilab.cli", *words]


if __name__ == "__main__":
    main()
