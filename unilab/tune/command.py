"""`unilab tune`: measure, choose, say why, and write it where `train` picks it up."""

from __future__ import annotations

import os
from importlib import metadata
from statistics import median
from typing import Any

from unilab.config import LoadedConfig, Machine, RunConfig, task_label
from unilab.config.schema import RuntimeConfig
from unilab.config.tuned import NUM_ENVS, RUNTIME_KEYS, check_writable, write_tuned
from unilab.errors import ConfigError, UnilabError
from unilab.tune.candidates import settings_of
from unilab.tune.envs import EnvCount, best_count, scan_envs
from unilab.tune.machine import this_machine
from unilab.tune.measuring import Budget, MeasureError
from unilab.tune.probe import ProcessProbe
from unilab.tune.report import comparison_line, env_count_lines, grid_table, reasons
from unilab.tune.search import Choice, search

BUDGET_S = 110.0  # of the two minutes; what is in flight at the end may take a few seconds more
BURSTS = 400  # a budget is good for about so many
SHORTEST_BURST_S, LONGEST_BURST_S = 0.1, 0.4
BUSY = 0.3  # load per CPU from which on the user is warned
ENVS_SHARE = 0.2  # of the time, for the number of envs
_PACKAGES = ("unilab-engine", "mujoco", "numba", "numpy", "torch")


def tune(loaded: LoadedConfig, *, budget_s: float = BUDGET_S, write_num_envs: bool = False) -> int:
    """Find the thread settings of a task on this machine and write them.

    Args:
      loaded: the config, without what an earlier call wrote.
      budget_s: time that all of it may take, s.
      write_num_envs: write the best number of envs as well.

    Returns:
      The exit code.

    Raises:
      ConfigError: the command line sets what is to be found, the task does not build, or the
        result could not be written.
      UnilabError: nothing could be measured.
    """
    for key in RUNTIME_KEYS:
        if loaded.origins[key] == "command line":
            raise ConfigError(f"command line: {key}: `unilab tune` finds it; leave it out")
    budget, machine = Budget(budget_s), this_machine()
    config = _with_auto_threads(loaded.config)
    check_writable(config.task)
    num_envs, ppo = config.physics.num_envs, config.learners.ppo
    say(f"task     {task_label(config.task)}: {num_envs} envs, {ppo.num_steps} steps an iteration")
    say(f"machine  {machine.describe()}; at most {budget_s:.0f} s")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY * machine.cpus:
        say(
            f"note     the machine is busy (load {load:.1f} on {machine.cpus} CPU(s)): what is "
            "fastest now may not be when it is quiet"
        )
    say("starting the measuring process: it builds the task and compiles kernels ...")
    burst_s = min(max(budget_s / BURSTS, SHORTEST_BURST_S), LONGEST_BURST_S)
    with ProcessProbe(config, burst_s) as probe:
        say(f"{budget.spent:5.0f} s  ready; measuring other numbers of envs ...")
        share = Budget(ENVS_SHARE * budget.left)
        counts = scan_envs(probe, machine.cpus, num_envs, share)
        best = best_count(counts, num_envs)
        say(env_count_lines(counts, best, num_envs, write_num_envs))
        if write_num_envs:
            num_envs = best.num_envs
        say(f"{budget.spent:5.0f} s  comparing thread settings at {num_envs} envs ...")
        try:
            choice = search(
                probe,
                machine.cpus,
                num_envs,
                budget,
                parallel=probe.layer is not None,
                tune_learner=probe.device == "cpu",
                report=lambda c: say(f"{budget.spent:5.0f} s  {comparison_line(c)}"),
            )
        except MeasureError as error:
            raise UnilabError(f"the task cannot be measured on this machine: {error}") from error
        stages = probe.stages[choice.plan]
        say("")
        say(grid_table(choice, ppo.num_steps * num_envs))
        say("")
        say(reasons(choice, num_envs, probe.layer, probe.device, stages))
    _write(config, machine, choice, num_envs, counts, budget)
    return 0


def _with_auto_threads(config: RunConfig) -> RunConfig:
    """Leave all that is to be found at auto, whatever the task's file says."""
    runtime = RuntimeConfig(threading_layer=config.runtime.threading_layer)
    return config.model_copy(update={"runtime": runtime})


def _write(
    config: RunConfig,
    machine: Machine,
    choice: Choice,
    num_envs: int,
    counts: list[EnvCount],
    budget: Budget,
) -> None:
    settings: dict[str, int | bool] = settings_of(choice.plan)
    if num_envs != config.physics.num_envs:
        settings[NUM_ENVS] = num_envs
        physics = config.physics.model_copy(update={"num_envs": num_envs})
        config = config.model_copy(update={"physics": physics})
    env_steps = config.learners.ppo.num_steps * num_envs
    measured: dict[str, Any] = {
        "collecting_env_steps_per_s": round(
            env_steps / median(choice.entries[choice.plan].collect_s)
        ),
        "env_steps_per_s": round(env_steps / choice.iteration_s(choice.plan)),
        "auto_takes_times_as_long": round(
            choice.ratios.get(choice.auto, 1.0) / choice.ratios[choice.plan], 3
        ),
        "equal_within_fraction": round(choice.margin, 4),
        "num_envs_speed": [[item.num_envs, round(item.speed, 3)] for item in counts],
        "seconds": round(budget.spent, 1),
    }
    path = write_tuned(config, machine, settings, measured, _versions())
    label = task_label(config.task)
    say(f"\nwritten  {path}")
    say(
        f"         `unilab train {label}` uses it on this machine at {num_envs} envs; --no-tuned "
        f"leaves it out,\n         `unilab explain {label}` shows it. {budget.spent:.0f} s in all."
    )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name.replace("-", "_")] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name.replace("-", "_")] = None
    return found


def say(text: str) -> None:
    """Print what a person follows."""
    print(text, flush=True)  # noqa: T201
