"""Does every learner learn: cart-pole by the train command, and a chain that chance cuts.

    python benchmark/benchmark_learners.py --seeds 1 2 3 4 5

Each run is a fresh process. Cart-pole is `unilab train cartpole learner=NAME`, solved where the
thresholds of its evaluation are met within the limit; its wall-clock is that of the whole command.
On the chain (`tests/learners/toys.py`) a learner must find the best action where cuts are
truncations, and must not where they terminate: that is what bootstrapping is for. Writes
learners.json.
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
from common import ROOT, fresh_processes, machine, show, spread, write_result

NAMES = ("ppo", "appo", "sac", "td3", "flashsac")
LIMIT_S = 120.0


def main() -> None:
    """Train every learner with every seed, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--learners", choices=NAMES, nargs="+", default=list(NAMES))
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("--child", nargs=2, metavar=("LEARNER", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(chain_child(arguments.child[0], int(arguments.child[1]))))
        return
    header, results = machine(), []
    print(
        f"{'task':10s} {'learner':10s} {'solved':>7s}  wall-clock s, median (min-max)", flush=True
    )
    for task in arguments.tasks:
        for learner in arguments.learners:
            runs = [TASKS[task](learner, seed, arguments.log_dir) for seed in arguments.seeds]
            wall_s = spread([run["wall_s"] for run in runs])
            solved = sum(run["solved"] for run in runs)
            results.append(
                {"task": task, "learner": learner, "solved": solved, "wall_s": wall_s, "runs": runs}
            )
            print(f"{task:10s} {learner:10s} {solved:>4d}/{len(runs):<2d}  {show(wall_s, 1)}",
                  flush=True)  # fmt: skip
    path = write_result(
        "learners",
        header,
        {
            "limit_s": LIMIT_S,
            "seeds": arguments.seeds,
            "all_solved": all(row["solved"] == len(row["runs"]) for row in results),
            "results": results,
        },
    )
    print(f"written: {path}")


def cartpole(learner: str, seed: int, log_dir: str) -> dict[str, Any]:
    """Run the train command; solved where its evaluation passes within the limit."""
    command = [
        sys.executable, "-m", "unilab.cli", "train", "cartpole", f"learner={learner}",
        f"seed={seed}", f"log.dir={log_dir}",
    ]  # fmt: skip
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s = time.perf_counter() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    run_dir = Path(lines[0].split(maxsplit=1)[1].strip())
    evaluation = json.loads((run_dir / "evaluation.json").read_text())
    rows = (run_dir / "metrics.jsonl").read_text().splitlines()
    passed = all(evaluation["passed"].values())
    return {
        "seed": seed,
        "wall_s": wall_s,
        "solved": passed and wall_s <= LIMIT_S,
        "passed": passed,
        "env_steps": json.loads(rows[-1])["counter/env_steps"],
        "metrics": evaluation["metrics"],
    }


def chain(learner: str, seed: int, _log_dir: str) -> dict[str, Any]:
    """Train on the chain with either kind of cut, in a process of its own."""
    begin = time.perf_counter()
    (found,) = fresh_processes(__file__, [learner, str(seed)], count=1)
    return {"seed": seed, "wall_s": time.perf_counter() - begin, **found}


def chain_child(learner: str, seed: int) -> dict[str, Any]:
    """Return the actions that the learner settled on, and whether they are as they should be."""
    sys.path.insert(0, str(ROOT))
    import torch

    from tests.learners.toy_training import CHAIN_GAMMA, CHAIN_TOLERANCE, on_chain
    from tests.learners.toys import best_action

    torch.set_num_threads(1)  # these networks are tiny
    best = best_action(CHAIN_GAMMA, truncates=True)
    truncated, terminated = (on_chain(learner, seed, truncates=kind) for kind in (True, False))
    return {
        "best": best,
        "action_truncated": truncated,
        "action_terminated": terminated,
        "solved": abs(truncated - best) <= CHAIN_TOLERANCE < abs(terminated - best),
    }


TASKS = {"cartpole": cartpole, "chain": chain}

if __name__ == "__main__":
    main()
