"""How many env steps each learner needs until its policy meets the task's thresholds.

    python benchmark/benchmark_steps.py go1_walk --learners ppo sac --seeds 1 2 3

Each learner is trained with the task's own settings, a fresh process for each seed, and saves its
policy about every `--every` env steps. Every policy is then judged by the task's evaluation, the
first one that meets all thresholds counts; so does, more strictly, the first one from which on all
do. All learners are judged on the same grid of env steps. Writes steps_<task>.json and a plot.

A training can be taken from before: --runs LEARNER=RUN_DIR ...; its checkpoints must all be there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, machine, spread, write_result


def main() -> None:
    """Train and judge all, print the table, write result and plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--learners", nargs="+", default=["ppo", "sac"], help="first: the baseline")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--every", type=int, default=50_000, help="env steps between two policies")
    parser.add_argument("--runs", nargs="*", default=[], help="LEARNER=RUN_DIR of trainings to use")
    parser.add_argument("--judge", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("overrides", nargs="*", help="of every training")
    arguments = parser.parse_intermixed_args()
    if arguments.judge:
        print(json.dumps(judge(Path(arguments.judge))))
        return
    header = machine()
    results = {learner: measure(arguments, learner) for learner in arguments.learners}
    summary = summarise(results)
    print_table(results, summary)
    RESULTS.mkdir(parents=True, exist_ok=True)
    plot(arguments.task, results, RESULTS / f"steps_{arguments.task}.png")
    path = write_result(
        f"steps_{arguments.task}", header, {"summary": summary, "learners": results}
    )
    print(f"written: {path}")


def measure(arguments: argparse.Namespace, learner: str) -> list[dict[str, Any]]:
    """Train a learner with each seed, or take its trainings from before, and judge them."""
    given = [word.partition("=")[2] for word in arguments.runs if word.startswith(f"{learner}=")]
    results = []
    for seed in arguments.seeds[: len(given) or None]:
        run_dir, wall_s = (given.pop(0), None) if given else train(arguments, learner, seed)
        command = [sys.executable, __file__, "--judge", run_dir]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        policies = json.loads(done.stdout.strip().splitlines()[-1])
        results.append({"seed": seed, "run": Path(run_dir).name, "wall_s": wall_s,
                        **first_passes(policies), "policies": policies})  # fmt: skip
        found = results[-1]["first"]
        print(f"{learner} seed {seed}: first passes at {found and found['env_steps']}", flush=True)
    return results


def train(arguments: argparse.Namespace, learner: str, seed: int) -> tuple[str, float]:
    """Train once, saving a policy about every `--every` env steps. Returns run directory, wall s.

    The last policy is that of the learner's own end, whatever the grid.
    """
    words = [f"learner={learner}", f"seed={seed}", *arguments.overrides]
    every = max(1, round(arguments.every / steps_per_iteration(arguments.task, words)))
    command = [
        sys.executable, "-m", "unilab.cli", "train", arguments.task, *words,
        "evaluation.at_end=false", "evaluation.video=false", f"log.dir={arguments.log_dir}",
        "checkpoint.keep=10000", f"checkpoint.every={every}",
    ]  # fmt: skip
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s = time.perf_counter() - begin
    for line in done.stdout.splitlines():
        if line.startswith("run "):
            return line.split(maxsplit=1)[1].strip(), wall_s
    raise SystemExit("the training did not say where its run is")


def steps_per_iteration(task: str, words: list[str]) -> int:
    """Return the env steps of an iteration with these settings."""
    from unilab.config import load_config

    config = load_config(task, words).config
    num_steps: int = getattr(config.learners, config.learner).num_steps
    return num_steps * config.physics.num_envs


def judge(run_dir: Path) -> list[dict[str, Any]]:
    """Evaluate every checkpoint of a run, oldest first."""
    from unilab.runners import checkpoint as checkpoints
    from unilab.runners.evaluate import evaluate
    from unilab.runners.restore import restore_policy
    from unilab.runs import list_checkpoints
    from unilab.runtime.threads import prepare_environment

    files = [path for _, path in list_checkpoints(run_dir)]
    prepare_environment(checkpoints.load(files[0]).config.runtime)
    policy = restore_policy(run_dir, files[0], [])
    results = []
    for file in files:
        loaded = checkpoints.load(file)
        policy.learner.load_state_dict(loaded.learner)  # type: ignore[attr-defined]
        found = evaluate(policy.built, policy.learner)
        results.append({
            "env_steps": loaded.progress.env_steps,
            "train_s": loaded.progress.wall_s,
            "passed": all(found.passed.values()),
            "metrics": found.metrics,
        })  # fmt: skip
    return results


def first_passes(policies: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first policy that passes, and the first from which on all pass."""
    lasting = None
    for policy in reversed(policies):
        if not policy["passed"]:
            break
        lasting = policy
    return {"first": next((p for p in policies if p["passed"]), None), "lasting": lasting}


def summarise(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return env steps and time of each learner, and its share of the first learner's steps."""
    summary: dict[str, Any] = {}
    for which in ("first", "lasting"):
        found = {
            learner: [run[which] for run in runs if run[which]] for learner, runs in results.items()
        }
        base = next(iter(results))
        for learner, policies in found.items():
            entry = summary.setdefault(learner, {})
            entry[which] = {"seeds_passed": len(policies)}
            if policies:
                entry[which]["env_steps"] = spread([p["env_steps"] for p in policies])
                entry[which]["train_s"] = spread([p["train_s"] for p in policies])
            if policies and found[base]:
                # The slowest seed against the median of the baseline: every seed keeps to it.
                most = max(p["env_steps"] for p in policies)
                entry[which]["worst_share"] = most / median(p["env_steps"] for p in found[base])
    return summary


def print_table(results: dict[str, list[dict[str, Any]]], summary: dict[str, Any]) -> None:
    """Print a row for each learner and seed, and the summary."""
    print(
        f"{'learner':9s} {'seed':>4s} {'first passes':>14s} {'lasting from':>14s} {'after s':>8s}"
    )
    for learner, runs in results.items():
        for run in runs:
            steps = [f"{p['env_steps']:,.0f}" if p else "-" for p in (run["first"], run["lasting"])]
            after = f"{run['first']['train_s']:.0f}" if run["first"] else "-"
            print(f"{learner:9s} {run['seed']:4d} {steps[0]:>13s} {steps[1]:>13s} {after:>8s}")
    base = next(iter(results))
    for learner, entry in summary.items():
        for which, found in entry.items():
            if learner != base and "worst_share" in found:
                print(f"{learner}: {which} policy of the slowest seed takes "
                      f"{found['worst_share']:.2f} x the env steps of {base} (median)")  # fmt: skip


def plot(task: str, results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw how long policies last, and how well they follow, over the env steps they took."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = next(iter(results.values()))[0]["policies"][0]["metrics"]
    names = [n for n in ("survived_fraction", "lin_vel_error", "ang_vel_error") if n in first]
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for color, (learner, runs) in enumerate(results.items()):
            for i, run in enumerate(runs):
                steps = [p["env_steps"] / 1e6 for p in run["policies"]]
                values = [p["metrics"][name] for p in run["policies"]]
                label = learner if i == 0 else None
                axis.plot(steps, values, color=f"C{color}", alpha=0.8, label=label)
        axis.set(xlabel="env steps, millions", title=name)
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.suptitle(task)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
