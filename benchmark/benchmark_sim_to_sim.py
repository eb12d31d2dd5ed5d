"""Does a policy that was trained on one physics backend walk as well on the other?

Trains a task on MuJoCo C and on mujoco-warp (on Warp's CPU device where there is no GPU), and
evaluates both policies on both: the same episodes, commands, noise and pushes. The figure is how
far the return on the other backend is from that on the policy's own.

    python benchmark/benchmark_sim_to_sim.py go1_walk

Runs that are there already can be given: --cpu-run RUN --warp-run RUN --log-dir DIR.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import machine, write_result

BACKENDS = ("mujoco_cpu", "mujoco_warp")
LIMIT = 0.05  # of the return


def main() -> None:
    """Train what is missing, evaluate, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--cpu-run", default=None, help="a run on mujoco_cpu; else one is trained")
    parser.add_argument("--warp-run", default=None, help="likewise on mujoco_warp")
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("overrides", nargs="*", help="of the trainings")
    arguments = parser.parse_intermixed_args()
    header = machine()
    given = dict(zip(BACKENDS, (arguments.cpu_run, arguments.warp_run), strict=True))
    rows = []
    for trained_on in BACKENDS:
        run = Path(given[trained_on] or train(arguments, trained_on))
        metrics = {on: evaluate(run, on) for on in BACKENDS}
        own = metrics[trained_on]["return"]
        other = next(metrics[on]["return"] for on in BACKENDS if on != trained_on)
        rows.append({"trained_on": trained_on, "metrics": metrics, "gap": abs(other / own - 1.0)})
        for on, values in metrics.items():
            shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
            print(f"trained on {trained_on:11s} evaluated on {on:11s} {shown}", flush=True)
        print(f"  the return differs by {100 * rows[-1]['gap']:.2f} % (limit {100 * LIMIT:.0f} %)")
    holds = all(row["gap"] <= LIMIT for row in rows)
    path = write_result(
        f"sim_to_sim_{arguments.task}", header, {"limit": LIMIT, "holds": holds, "rows": rows}
    )
    print(f"written: {path}")


def train(arguments: argparse.Namespace, backend: str) -> str:
    """Train on a backend. Returns the run directory."""
    words = [
        "train", arguments.task, "seed=1", f"physics.backend={backend}", "evaluation.at_end=false",
        "evaluation.video=false", f"log.dir={arguments.log_dir}", *arguments.overrides,
    ]  # fmt: skip
    for line in unilab(*words).splitlines():
        if line.startswith("run "):
            return line.split(maxsplit=1)[1].strip()
    raise SystemExit("the training did not say where its run is")


def evaluate(run: Path, backend: str) -> dict[str, Any]:
    """Evaluate a run's last checkpoint on a backend; what the run holds of its own stays."""
    file = run / "evaluation.json"
    before = file.read_bytes() if file.exists() else None
    unilab("eval", "--run", str(run), f"physics.backend={backend}")
    metrics: dict[str, Any] = json.loads(file.read_text())["metrics"]
    if before is not None:
        file.write_bytes(before)
    return metrics


def unilab(*words: str) -> str:
    """Run a command of ours and return what it printed."""
    command = [sys.executable, "-m", "unilab.cli", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
