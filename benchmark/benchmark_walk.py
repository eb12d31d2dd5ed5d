"""Does it walk, and how soon: the README's train command for several seeds, start to finish.

    python benchmark/benchmark_walk.py go1_walk --seeds 1 2 3

Each seed is a fresh process. Wall-clock is that of the whole command: start-up, training,
evaluation, plot and video. Writes walk_<task>.json and the learning curves of all seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, machine, spread, write_result


def main() -> None:
    """Train every seed, print the table, write result and curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    header = machine()
    results = [run(arguments, seed) for seed in arguments.seeds]
    print(
        f"{'seed':>4s} {'wall s':>7s} {'first line s':>12s} {'M steps':>8s} {'passed':>6s}  metrics"
    )
    for r in results:
        metrics = "  ".join(f"{k} {v:.3f}" for k, v in r["metrics"].items())
        print(f"{r['seed']:4d} {r['wall_s']:7.1f} {r['first_line_s']:12.1f} "
              f"{r['env_steps'] / 1e6:8.2f} {r['passed']!s:>6s}  {metrics}")  # fmt: skip
    from unilab.plots import compare_curves

    RESULTS.mkdir(parents=True, exist_ok=True)
    curves = RESULTS / f"walk_{arguments.task}.png"
    compare_curves([(arguments.task, Path(r["run"]) / "metrics.jsonl") for r in results], curves)
    for r in results:
        r["run"] = Path(r["run"]).name
    path = write_result(
        f"walk_{arguments.task}",
        header,
        {
            "wall_s": spread([r["wall_s"] for r in results]),
            "all_passed": all(r["passed"] for r in results),
            "seeds": results,
        },
    )
    print(f"written: {path}\n         {curves}")


def run(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run the train command for one seed and read what it left."""
    command = [
        sys.executable, "-m", "unilab.cli", "train", arguments.task, f"seed={seed}",
        f"log.dir={arguments.log_dir}", *arguments.overrides,
    ]  # fmt: skip
    begin, first_line_s, run_dir = time.perf_counter(), None, ""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("run ") and not run_dir:
            run_dir = line.split(maxsplit=1)[1].strip()
        if first_line_s is None and line.startswith("["):
            first_line_s = time.perf_counter() - begin
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    wall_s = time.perf_counter() - begin
    evaluation = json.loads((Path(run_dir) / "evaluation.json").read_text())
    rows = [json.loads(x) for x in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return {
        "seed": seed,
        "run": run_dir,
        "wall_s": wall_s,
        "first_line_s": first_line_s,
        "train_s": rows[-1]["elapsed_s"],
        "env_steps": rows[-1]["counter/env_steps"],
        "env_steps_per_s": rows[-1]["counter/env_steps"] / rows[-1]["elapsed_s"],
        "passed": all(evaluation["passed"].values()),
        "metrics": evaluation["metrics"],
        "by_command": evaluation["points"],
    }


if __name__ == "__main__":
    main()
