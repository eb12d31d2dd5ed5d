"""What watching a run costs it: the same training with and without a monitor, in turns.

Each training is a fresh process of a fixed number of iterations; its rate is taken from its own
metrics, from the second row to the last. The monitor attaches to it as to any run that goes on, and
stays to its end. Pairs are run in the order without, with, with, without ..., so that a machine
that gets slower or faster does not count for one side. Beside the ratio stands the CPU time that
the monitor itself took while it watched, which no noise hides.

    python benchmark/benchmark_monitor.py go1_walk

Three pairs of 60 iterations of go1_walk take about three minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import machine, spread, write_result

QUIET = ("evaluation.at_end=false", "evaluation.video=false", "seed=1")


def main() -> None:
    """Measure, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--interval", type=float, default=2.0, help="the monitor's, s")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    header = machine()
    pairs = []
    for i in range(arguments.pairs):
        order = (False, True) if i % 2 == 0 else (True, False)
        found = {watched: train(arguments, watched=watched) for watched in order}
        pairs.append({"without": found[False], "with": found[True]})
        print(f"pair {i + 1}: without {rate(found[False])}, with {rate(found[True])}", flush=True)
    overheads = spread(
        [1.0 - p["with"]["env_steps_per_s"] / p["without"]["env_steps_per_s"] for p in pairs]
    )
    own = spread([p["with"]["monitor_share"] for p in pairs])
    print(f"{'':34s} {'median':>8s} {'min':>8s} {'max':>8s}")
    for name, value in (
        ("slower with the monitor, %", overheads),
        ("CPU of the monitor, % of all cores", own),
    ):
        shown = " ".join(f"{100 * value[key]:8.2f}" for key in ("median", "min", "max"))
        print(f"{name:34s} {shown}")
    rates = {key: spread([p[key]["env_steps_per_s"] for p in pairs]) for key in pairs[0]}
    path = write_result(
        f"monitor_{arguments.task}",
        header,
        {
            "overhead": overheads,
            "monitor_share": own,
            "without_env_steps_per_s": rates["without"],
            "with_env_steps_per_s": rates["with"],
            "interval_s": arguments.interval,
            "iterations": arguments.iterations,
            "pairs": pairs,
        },
    )
    print(f"written: {path}")


def train(arguments: argparse.Namespace, *, watched: bool) -> dict[str, Any]:
    """Train once in a process of its own. Returns its rate, and what the monitor took."""
    with tempfile.TemporaryDirectory() as folder:
        words = [arguments.task, *arguments.overrides, *QUIET]
        words += [f"train.iterations={arguments.iterations}", f"log.dir={folder}/runs"]
        run = start(["train", *words], folder)
        monitor = None
        if watched:
            wait_for_metrics(Path(folder), run)
            options = ["--pid", str(run.pid), "--interval", str(arguments.interval)]
            monitor = start(["monitor", *options, "--output", f"{folder}/report"], folder)
        if run.wait() != 0:
            sys.exit(f"the training ended with exit code {run.returncode}")
        lines = next(Path(folder).glob("runs/*/*/metrics.jsonl")).read_text().splitlines()
        first, last = json.loads(lines[1]), json.loads(lines[-1])
        steps = last["counter/env_steps"] - first["counter/env_steps"]
        result = {"env_steps_per_s": steps / (last["elapsed_s"] - first["elapsed_s"])}
        if monitor is not None:
            if monitor.wait() != 0:
                sys.exit(f"the monitor ended with exit code {monitor.returncode}")
            report = json.loads((Path(folder) / "report" / "report.json").read_text())
            cpu = report["cpu"]
            result["monitor_share"] = cpu["monitor_cores"] / cpu["available"]
            result["watched_s"] = report["watched"]["seconds"]
        return result


def start(words: list[str], folder: str) -> subprocess.Popen[bytes]:
    """Start a unilab command whose output nobody sees."""
    return subprocess.Popen(
        [sys.executable, "-m", "unilab.cli", *words], cwd=folder, stdout=subprocess.DEVNULL
    )


def wait_for_metrics(folder: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until the run has opened its metrics, by which the monitor finds it."""
    while not list(folder.glob("runs/*/*/metrics.jsonl")):
        if run.poll() is not None:
            sys.exit(f"the training ended with exit code {run.returncode}")
        time.sleep(0.02)


def rate(result: dict[str, Any]) -> str:
    """A rate for a person."""
    return f"{result['env_steps_per_s']:,.0f} env-steps/s"


if __name__ == "__main__":
    main()
