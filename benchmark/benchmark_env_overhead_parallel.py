"""What the host step of a task costs by batch size, in NumPy and Numba, serial and in parallel.

Host step: all of a control step but physics, policy and buffer, on states recorded from the running
task. Three fresh processes a size. `unilab bench TASK` puts the same rows beside end-to-end rates.

    python benchmark/benchmark_env_overhead_parallel.py g1_walk --sizes 512,2048,8192
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, machine, show, spread, write_result

from unilab.bench.processes import Stages, run_worker
from unilab.bench.results import result_stem
from unilab.bench.show import Show
from unilab.config import load_config


def main() -> None:
    """Measure, print a table a size, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="g1_walk")
    parser.add_argument("--sizes", default="512,2048,8192", help="numbers of envs")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of host steps, per process")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    load_config(arguments.task, arguments.overrides)  # a mistake shows here
    head, tables = machine(), {}
    sizes = [int(size) for size in arguments.sizes.split(",")]
    with Show() as progress:
        stages = Stages([0.6, *[1.0] * arguments.processes] * len(sizes), progress)
        for size in sizes:
            tables[size] = measure(arguments, size, stages)
    for size, table in tables.items():
        print(f"\n{arguments.task}, {size:,} envs: host step, ms per control step")
        first = table["host_ms"].get("numpy")
        for key, title in table["titles"].items():
            if key in table["absent"]:
                print(f"  {title:40s} {table['absent'][key]}")
                continue
            row = table["host_ms"][key]
            faster = "" if first is None else f"{first['median'] / row['median']:8.2f}x"
            print(f"  {title:40s} {show(row):>24s} {faster}")
        for name, gain in table["gains"].items():
            print(f"  one to two shards, {name.removesuffix('_gain'):22s} {show(gain, 2):>24s}")
    name = result_stem("overhead", arguments.task, head["id"])
    print(f"written: {write_result(name, head, {'sizes': tables}, arguments.output)}")


def measure(arguments: argparse.Namespace, size: int, stages: Stages) -> dict[str, object]:
    """Record inputs for one size, and time it in fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "task": arguments.task,
            "overrides": arguments.overrides,
            "num_envs": size,
            "recorded_steps": 6,
            "host_s": arguments.seconds,
            "recording": f"{folder}/recording.pkl",
        }
        results = []
        for mode in ("record", *["host"] * arguments.processes):
            results.append(run_worker({**job, "mode": mode}, stages.within(f"{size} envs")))
            stages.finish()
    found = results[1:]
    gains = {} if found[0]["scaling"] is None else dict.fromkeys(
        key for key in found[0]["scaling"] if key.endswith("_gain")
    )  # fmt: skip
    return {
        "titles": found[0]["titles"],
        "absent": found[0]["absent"],
        "host_ms": {k: spread([p["host_ms"][k] for p in found]) for k in found[0]["host_ms"]},
        "gains": {key: spread([p["scaling"][key] for p in found]) for key in gains},
    }


if __name__ == "__main__":
    main()
