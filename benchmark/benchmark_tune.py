"""Is what `unilab tune` chooses near the best of all settings? It searches, then a grid of every
setting is measured, in turns, in three fresh processes.

    python benchmark/benchmark_tune.py go1_walk
    python benchmark/benchmark_tune.py g1_walk physics.num_envs=1024 --rounds 2

Takes 4 to 5 minutes on 2 CPUs; the grid grows with their number. Exit code 1 if the choice takes
more than 10 % longer than the best point of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from common import machine, write_result

from unilab.config import RunConfig, load_config
from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError
from unilab.runtime.threads import ThreadPlan, available_cpus, make_plan
from unilab.tune.candidates import GROUP_COUNTS, auto_plan, settings_of, useful_shards
from unilab.tune.command import BUDGET_S
from unilab.tune.measuring import Budget
from unilab.tune.probe import ProcessProbe
from unilab.tune.report import short
from unilab.tune.search import Choice, search

LIMIT = 1.10
PROCESSES = 3


def main() -> int:
    """Search, measure the grid, compare, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--rounds", type=int, default=3, help="of the grid, in each process")
    parser.add_argument("--burst", type=float, default=0.3, help="length of a measurement, s")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="of the search, s")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    header, began = machine(), time.perf_counter()
    config = load_config(arguments.task, arguments.overrides).config
    config = config.model_copy(update={"runtime": RuntimeConfig()})
    num_envs, cpus = config.physics.num_envs, available_cpus()

    budget = Budget(arguments.budget)
    with ProcessProbe(config, arguments.burst) as probe:
        parallel, on_cpu = probe.layer is not None, probe.device == "cpu"
        choice = search(probe, cpus, num_envs, budget, parallel=parallel, tune_learner=on_cpu)
    search_s = budget.spent
    print(f"{arguments.task}, {num_envs} envs: tune chose {short(choice.plan)} in {search_s:.0f} s")

    plans = grid(cpus, num_envs, parallel=parallel, learners=on_cpu)
    plans = list(dict.fromkeys([auto_plan(cpus, num_envs), choice.plan, *plans]))
    print(f"grid of {len(plans)} settings, {PROCESSES} processes x {arguments.rounds} rounds ...")
    rounds, updates = measure(config, plans, arguments.rounds, arguments.burst)
    rows = evaluate(plans, rounds, updates)
    content = summary(config, rows, choice, search_s)
    print_grid(rows, choice)
    verdict = content["choice_over_best"]
    print(f"tune's choice takes {verdict:.3f}x the time of the best (limit {LIMIT:.2f}x)")
    print(
        f"auto takes {content['auto_over_best']:.3f}x; {time.perf_counter() - began:.0f} s in all"
    )
    print(f"written: {write_result(f'tune_{arguments.task}_{num_envs}', header, content)}")
    return 0 if verdict <= LIMIT else 1


def grid(cpus: int, num_envs: int, *, parallel: bool, learners: bool) -> list[ThreadPlan]:
    """Return every plan on a grid of powers of two (and all CPUs) that `make_plan` accepts."""
    powers = sorted({cpus, *(1 << k for k in range(cpus.bit_length()))})
    found = []
    for overlap, groups in ((False, 1), *((True, count) for count in GROUP_COUNTS)):
        for physics, shards, per_shard, learner in itertools.product(
            powers, powers, powers if parallel else [1], powers if learners else [cpus]
        ):
            if shards > useful_shards(num_envs, groups):
                continue
            values = RuntimeConfig(
                threads=physics,
                shards=shards,
                threads_per_shard=per_shard,
                groups=groups,
                overlap=overlap,
                learner_threads=learner,
            )
            try:
                found.append(make_plan(values, num_envs, cpus=cpus))
            except ConfigError:  # more threads than CPUs, or more groups than blocks
                continue
    return found


def measure(
    config: RunConfig, plans: Sequence[ThreadPlan], count: int, burst_s: float
) -> tuple[list[list[float]], dict[int, list[float]]]:
    """Measure all plans in turns, in fresh processes.

    Returns:
      One list a round: collecting of each plan, s per iteration; and learning by torch's threads.
    """
    rounds: list[list[float]] = []
    updates: dict[int, list[float]] = {plan.learner: [] for plan in plans}
    num_envs = config.physics.num_envs
    for _ in range(PROCESSES):
        with ProcessProbe(config, burst_s) as probe:
            probe.collect(plans[0], num_envs)  # warms up
            for _ in range(count):
                rounds.append([probe.collect(plan, num_envs) for plan in plans])
                for threads, bursts in updates.items():
                    bursts.append(probe.update(threads, num_envs))
    return rounds, updates


def evaluate(
    plans: Sequence[ThreadPlan], rounds: list[list[float]], updates: dict[int, list[float]]
) -> list[dict[str, Any]]:
    """Return a row for each plan, fastest first: times in s per iteration, as median and range.

    A plan's time is its share of its round's total, times the median total: the machine drifts
    from round to round by more than plans differ.
    """
    typical = median(sum(times) for times in rounds)
    learning = {threads: median(bursts) for threads, bursts in updates.items()}
    rows = []
    for i, plan in enumerate(plans):
        times = [times[i] / sum(times) * typical for times in rounds]
        rows.append(
            {
                "plan": plan,
                "collect_s": median(times),
                "collect_min_s": min(times),
                "collect_max_s": max(times),
                "update_s": learning[plan.learner],
                "iteration_s": median(times) + learning[plan.learner],
            }
        )
    return sorted(rows, key=lambda row: row["iteration_s"])


def summary(
    config: RunConfig, rows: list[dict[str, Any]], choice: Choice, search_s: float
) -> dict[str, Any]:
    """Return what is kept of a comparison."""
    by_plan = {row["plan"]: row["iteration_s"] for row in rows}
    best = rows[0]["iteration_s"]
    env_steps = config.learners.ppo.num_steps * config.physics.num_envs
    return {
        "task": config.task,
        "num_envs": config.physics.num_envs,
        "choice": settings_of(choice.plan),
        "choice_over_best": by_plan[choice.plan] / best,
        "auto_over_best": by_plan[choice.auto] / best,
        "best": settings_of(rows[0]["plan"]),
        "env_steps_per_s": {
            "best": env_steps / best,
            "choice": env_steps / by_plan[choice.plan],
            "auto": env_steps / by_plan[choice.auto],
        },
        "search_s": search_s,
        "search_complete": choice.complete,
        "grid": [{**row, "plan": settings_of(row["plan"])} for row in rows],
    }


def print_grid(rows: list[dict[str, Any]], choice: Choice) -> None:
    """Print the grid, fastest first."""
    best = rows[0]["iteration_s"]
    print(f"{'iteration':>9s} {'collect':>8s} {'min':>8s} {'max':>8s} {'learn':>8s}  s")
    for row in rows:
        marks = [word for word, plan in (("tune", choice.plan), ("auto", choice.auto))
                 if plan == row["plan"]]  # fmt: skip
        print(
            f"{row['iteration_s'] / best:8.3f}x {row['collect_s']:8.4f} {row['collect_min_s']:8.4f}"
            f" {row['collect_max_s']:8.4f} {row['update_s']:8.4f}  {short(row['plan'])}"
            f"  {' '.join(marks)}".rstrip()
        )


if __name__ == "__main__":
    sys.exit(main())
