"""What mixed precision costs and gives: time and memory of an update, and the return it leads to.

Time is that of a learner's own update (`ppo`, `appo`: an iteration's; the others: a control
step's cycle) on data of the task's sizes, in turns and in fresh processes. Memory is what an update
holds at its peak beyond what is there before it: on a CUDA device what its allocator counts, on a
CPU what the profiler sees allocated and freed; buffers that the learner keeps between updates are
counted beside it. Return is that of `unilab train` with `learners.X.precision=...` for each seed,
as judged by its evaluation at the end.

    python benchmark/benchmark_precision.py go1_walk learner=sac --precisions fp32 bf16 \
        --widths 512 1024 --train-iterations 300 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, fresh_processes, machine, show, spread, write_result

from unilab.bench.results import result_stem

MIB = 2**20


def main() -> None:
    """Measure, print the tables, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("overrides", nargs="*", help="key=value, such as learner=sac")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--widths", type=int, nargs="*", default=[],
                        help="all hidden layers as wide; without, the task's own")  # fmt: skip
    parser.add_argument("--updates", type=int, default=5, help="timed of each kind in a process")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--train-iterations", type=int, default=0, help="0: no training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    head = machine()
    results = fresh_processes(__file__, sys.argv[1:], arguments.processes)
    updates = summarize(results, arguments.precisions)
    print_updates(updates, results[0], arguments.precisions)
    returns = {}
    if arguments.train_iterations:
        returns = train_all(arguments, results[0]["learner"])
        print_returns(returns, arguments.precisions)
    content = {
        "learner": results[0]["learner"],
        "device": results[0]["device"],
        "memory_from": results[0]["memory_from"],
        "updates": updates,
        "returns": returns,
    }
    name = result_stem("precision", f"{arguments.task}_{results[0]['learner']}", head["id"])
    print(f"written: {write_result(name, head, content, arguments.output)}")


def summarize(results: list[dict[str, Any]], precisions: list[str]) -> dict[str, Any]:
    """Put the processes' figures together; a ratio is of one process, so of one minute."""
    first = precisions[0]
    table: dict[str, Any] = {}
    for width in results[0]["ms"]:
        times = [result["ms"][width] for result in results]
        memory = results[0]["bytes"][width]
        table[width] = {
            "ms": {name: spread([t[name] for t in times]) for name in precisions},
            "time_ratio": {
                name: spread([t[name] / t[first] for t in times]) for name in precisions
            },
            "peak_bytes": {name: memory[name]["peak"] for name in precisions},
            "kept_bytes": {name: memory[name]["kept"] for name in precisions},
        }
    return table


def print_updates(table: dict[str, Any], result: dict[str, Any], precisions: list[str]) -> None:
    """Print time and memory of an update."""
    print(f"{result['learner']} on {result['device']}; memory as seen by {result['memory_from']}")
    print(f"{'hidden':>22s} {'precision':>9s} {'ms an update':>28s} {'time ratio':>22s} "
          f"{'peak MiB':>9s} {'kept MiB':>9s} {'sum ratio':>9s}")  # fmt: skip
    for width, row in table.items():
        total = {n: row["peak_bytes"][n] + row["kept_bytes"][n] for n in precisions}
        for name in precisions:
            print(f"{width:>22s} {name:>9s} {show(row['ms'][name], 2):>28s} "
                  f"{show(row['time_ratio'][name], 2):>22s} "
                  f"{row['peak_bytes'][name] / MIB:9.1f} {row['kept_bytes'][name] / MIB:9.1f} "
                  f"{total[name] / total[precisions[0]]:9.2f}")  # fmt: skip


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: build the learner for each width and precision, and update in turns."""
    from unilab.config import load_config
    from unilab.runners.backends import choose_device
    from unilab.runtime.threads import available_cpus, prepare_environment

    config = load_config(arguments.task, arguments.overrides).config
    prepare_environment(config.runtime)
    import torch

    torch.set_num_threads(available_cpus())
    device, block = choose_device(config.device), f"learners.{config.learner}"
    times: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, dict[str, int]]] = {}
    for width in arguments.widths or [0]:
        runs, kept = {}, {}
        for name in arguments.precisions:
            extra = [f"{block}.precision={name}", *widths_of(config, block, width)]
            runs[name], kept[name] = prepare(arguments, [*arguments.overrides, *extra], device)
        label = str(width) if width else own_widths(config)
        spans: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():  # warm up; PPO makes room in its first update
            run()
        for _ in range(arguments.updates):
            for name, run in runs.items():
                begin = perf_counter()
                run()
                spans[name].append(1e3 * (perf_counter() - begin))
        times[label] = {name: statistics.median(values) for name, values in spans.items()}
        memory[label] = {
            name: {"peak": peak_bytes(run, device), "kept": kept[name]()}
            for name, run in runs.items()
        }
    source = "torch.cuda.max_memory_allocated" if device.type == "cuda" else "torch's profiler"
    return {
        "learner": config.learner,
        "device": str(device),
        "memory_from": source,
        "ms": times,
        "bytes": memory,
    }


def widths_of(config: Any, block: str, width: int) -> list[str]:
    """Return the overrides that make all hidden layers `width` wide; none for 0."""
    if not width:
        return []
    settings = getattr(config.learners, config.learner)
    values = {key: getattr(settings, key) for key in settings.layers}
    return [
        f"{block}.{key}={[width] * len(own) if isinstance(own, tuple) else width}".replace(" ", "")
        for key, own in values.items()
    ]


def own_widths(config: Any) -> str:
    """Return the widths of the task's own networks as a label."""
    settings = getattr(config.learners, config.learner)
    return "+".join("-".join(str(x) for x in layers) for layers in settings.layers.values())


def prepare(
    arguments: argparse.Namespace, overrides: list[str], device: Any
) -> tuple[Callable[[], None], Callable[[], int]]:
    """Build a learner and its data.

    Returns:
      What makes one update and waits for it, and what counts the bytes kept between updates for
      activations and their gradients.
    """
    import torch

    from unilab.config import load_config
    from unilab.config.off_policy import ReplayConfig
    from unilab.learners.base import LearnerSpec
    from unilab.runners.build import learner_settings, make_learner
    from unilab.tasks.base import build_task

    config = load_config(arguments.task, overrides).config
    built, settings = build_task(config), learner_settings(config)
    learner: Any = make_learner(built, config, device, seed=1)
    sizes = LearnerSpec(
        built.kernel.num_obs, built.kernel.num_critic_obs, len(built.model.ctrl_offset)
    )
    if isinstance(settings, ReplayConfig):
        batch = random_batch(settings.batch_size * settings.updates_per_step, sizes, device)
        learner.observe(batch.obs, batch.critic_obs)

        def update() -> None:
            learner.cycle(batch)
    else:
        rollout = random_rollout(
            learner, settings.num_steps, config.physics.num_envs, sizes, device
        )

        def update() -> None:
            learner.update(rollout)

    def run() -> None:
        update()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def kept() -> int:
        buffers = [
            tensor
            for work in ("_actor_work", "_critic_work")
            for name in ("_pre", "_post", "_grad")
            for tensor in getattr(getattr(learner, work, None), name, [])
        ]
        return sum(tensor.nbytes for tensor in buffers)

    return run, kept


def random_batch(rows: int, sizes: Any, device: Any) -> Any:
    """Return transitions of normal numbers; 1 in 100 ends."""
    import torch

    from unilab.buffers.batch import Batch

    def normal(*width: int) -> Any:
        return torch.randn(rows, *width, device=device)

    goes_on = (torch.rand(rows, device=device) > 0.01).float()
    return Batch(
        normal(sizes.obs_dim), normal(sizes.critic_obs_dim), normal(sizes.action_dim).tanh(),
        normal(), 0.97 * goes_on, normal(sizes.obs_dim), normal(sizes.critic_obs_dim),
        torch.ones(rows, device=device),
    )  # fmt: skip


def random_rollout(learner: Any, num_steps: int, num_envs: int, sizes: Any, device: Any) -> Any:
    """Return a rollout of normal observations and the learner's own actions."""
    import torch

    from unilab.buffers.rollout import Rollout

    dims = (sizes.obs_dim, sizes.critic_obs_dim, sizes.action_dim)
    rollout = Rollout(num_steps, num_envs, *dims, device)
    for field in (rollout.obs, rollout.critic_obs, rollout.reward):
        field.normal_()
    for t in range(num_steps):
        out = learner.act(rollout.obs[t])
        rollout.action[t], rollout.mean[t], rollout.log_prob[t] = out
    rollout.terminated.copy_(torch.rand(num_steps, num_envs) < 0.01)
    return rollout


def peak_bytes(run: Callable[[], None], device: Any) -> int:
    """Return the most bytes that an update holds at once, beyond what was there before it."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return int(torch.cuda.max_memory_allocated(device)) - before
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def train_all(arguments: argparse.Namespace, learner: str) -> dict[str, Any]:
    """Train every seed in every precision, in turns, each as a user would."""
    results: dict[str, list[float]] = {name: [] for name in arguments.precisions}
    for seed in arguments.seeds:
        for name in arguments.precisions:
            results[name].append(train(arguments, learner, name, seed))
            print(f"seed {seed} {name}: return {results[name][-1]:.3f}", flush=True)
    means = {name: statistics.fmean(values) for name, values in results.items()}
    base = results[arguments.precisions[0]]
    ranges = {name: max(values) - min(values) for name, values in results.items()}
    first = arguments.precisions[0]
    return {
        "iterations": arguments.train_iterations,
        "seeds": arguments.seeds,
        "by_seed": results,
        "difference": {name: means[name] - means[first] for name in arguments.precisions},
        # Of the means, against how far the first precision's own seeds are apart.
        "within_seed_spread": {
            name: abs(means[name] - means[first]) <= max(ranges[first], ranges[name])
            if len(base) > 1
            else None
            for name in arguments.precisions
        },
    }


def train(arguments: argparse.Namespace, learner: str, precision: str, seed: int) -> float:
    """Run `unilab train` in a process of its own; returns its evaluation's return."""
    command = [
        sys.executable, "-m", "unilab.cli", "train", arguments.task, *arguments.overrides,
        f"learners.{learner}.precision={precision}", f"seed={seed}",
        f"train.iterations={arguments.train_iterations}", f"log.dir={arguments.log_dir}",
        "evaluation.video=false", "log.tensorboard=false",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("run      ")]
    evaluation = json.loads((Path(lines[0].split(maxsplit=1)[1]) / "evaluation.json").read_text())
    return float(evaluation["metrics"]["return"])


def print_returns(returns: dict[str, Any], precisions: list[str]) -> None:
    """Print the returns of all seeds."""
    seeds = "".join(f"{f'seed {seed}':>10s}" for seed in returns["seeds"])
    print(f"{'return':>9s}{seeds}{'difference':>12s}  within the spread of the seeds")
    for name in precisions:
        values = "".join(f"{value:10.3f}" for value in returns["by_seed"][name])
        verdict = {None: "one seed has no spread", True: "yes", False: "no"}
        print(f"{name:>9s}{values}{returns['difference'][name]:12.3f}  "
              f"{verdict[returns['within_seed_spread'][name]]}")  # fmt: skip


if __name__ == "__main__":
    main()
