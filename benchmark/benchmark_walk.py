"""Does it walk, and how soon: the README's train command for several seeds, start to finish.

    python benchmark/benchmark_walk.py go1_walk --seeds 1 2 3

Each seed is a fresh process. Wall-clock is that of the whole command: start-up, training,
evaluation, plot and video. Writes walk_<task>.json and the learning curves of all seeds.

Also says how far the training return rose from the first tenth of the iterations to the last one,
in standard errors of the difference, and what the evaluation gives to actions of zero: a run that
is too short to pass has learned something all the same if both are well exceeded. On uneven ground
the mean level of the envs is compared likewise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, machine, spread, write_result

LEVEL = "curriculum/terrain_level"


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
    idle = zero_action_return(arguments)
    print(
        f"{'seed':>4s} {'wall s':>7s} {'first line s':>12s} {'M steps':>8s} {'passed':>6s}  metrics"
    )
    for r in results:
        metrics = "  ".join(f"{k} {v:.3f}" for k, v in r["metrics"].items())
        print(f"{r['seed']:4d} {r['wall_s']:7.1f} {r['first_line_s']:12.1f} "
              f"{r['env_steps'] / 1e6:8.2f} {r['passed']!s:>6s}  {metrics}")  # fmt: skip
        rise = r["training_return"]
        print(f"     training return {rise['first_tenth']:.2f} -> {rise['last_tenth']:.2f} "
              f"({rise['standard_errors']:.0f} standard errors); evaluation "
              f"{r['metrics']['return']:.2f}, with actions of zero {idle:.2f}")  # fmt: skip
        level = r["terrain_level"]
        if level is not None:
            print(f"     terrain level {level['first_tenth']:.2f} -> {level['last_tenth']:.2f} "
                  f"({level['standard_errors']:.0f} standard errors)")  # fmt: skip
    from unilab.plots import compare_curves

    RESULTS.mkdir(parents=True, exist_ok=True)
    curves = RESULTS / f"{result_name(arguments)}.png"
    compare_curves([(arguments.task, Path(r["run"]) / "metrics.jsonl") for r in results], curves)
    for r in results:
        r["run"] = Path(r["run"]).name
    path = write_result(
        result_name(arguments),
        header,
        {
            "wall_s": spread([r["wall_s"] for r in results]),
            "all_passed": all(r["passed"] for r in results),
            "zero_action_return": idle,
            "seeds": results,
        },
    )
    print(f"written: {path}\n         {curves}")


def result_name(arguments: argparse.Namespace) -> str:
    """Return the name of the result: of the task, and of the learner where one is chosen."""
    learner = [
        word.partition("=")[2] for word in arguments.overrides if word.startswith("learner=")
    ]
    return "_".join(["walk", arguments.task, *learner[-1:]])


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
        "training_return": rise(rows, "episode/return"),
        "terrain_level": rise(rows, LEVEL) if LEVEL in rows[0] else None,
        "passed": all(evaluation["passed"].values()),
        "metrics": evaluation["metrics"],
        "by_command": evaluation["points"],
        "by_level": evaluation["levels"],
    }


def rise(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Compare a metric of the first and of the last tenth of the iterations."""
    values = [float(row[name]) for row in rows if name in row]
    count = max(2, len(values) // 10)
    first, last = values[:count], values[-count:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / count)
    means = statistics.fmean(first), statistics.fmean(last)
    return {
        "first_tenth": means[0],
        "last_tenth": means[1],
        "standard_errors": (means[1] - means[0]) / max(error, 1e-9),
    }


def zero_action_return(arguments: argparse.Namespace) -> float:
    """Return what the evaluation gives to a policy that does nothing."""
    from unilab.config import load_config
    from unilab.runtime.threads import prepare_environment

    config = load_config(arguments.task, arguments.overrides).config
    prepare_environment(config.runtime)
    import torch

    from unilab.learners.base import ActOutput
    from unilab.runners.evaluate import evaluate
    from unilab.tasks.base import build_task

    built = build_task(config)

    class Idle:
        device = torch.device("cpu")

        def act(self, obs: torch.Tensor, explore: bool = True) -> ActOutput:
            del explore
            zeros = torch.zeros(len(obs), len(built.model.ctrl_offset))
            return ActOutput(zeros, zeros, zeros[:, 0])

    return evaluate(built, Idle()).metrics["return"]  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
