"""Runs the checks and the table, prints both, and keeps them as JSON."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from unilab.bench.machine import header
from unilab.bench.results import results_folder, write_json
from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.runners.backends import choose_device
from unilab.selfcheck.checks import CHECKS, Found
from unilab.selfcheck.rates import Rates, measure_rates
from unilab.selfcheck.targets import judge
from unilab.tasks.base import build_task

TASKS = ("go1_walk", "g1_walk")
GPU_SIZES, CPU_SIZES = (2048, 4096, 8192), (256,)


def selfcheck(
    *,
    gpu: bool,
    tasks: Sequence[str] = TASKS,
    sizes: Sequence[int] | None = None,
    checks_only: bool = False,
    output: Path | None = None,
    command: Sequence[str] = (),
) -> int:
    """Check and measure physics, collector, buffer and learner.

    Args:
      gpu: on CUDA; else on Warp's CPU device, which runs the same kernels.
      tasks: names.
      sizes: env counts of the table; None: 2,048, 4,096 and 8,192 on a GPU.
      checks_only: leave the table out.
      output: folder of the JSON file; None: benchmark/results of the checkout.
      command: what the user typed, for the record.

    Returns:
      0, or 1 where a check failed or an env had too little room for its contacts.

    Raises:
      ConfigError: there is no CUDA device, or mujoco-warp is not installed.
    """
    device = choose_device("cuda") if gpu else torch.device("cpu")
    begin, machine = perf_counter(), header()
    say(f"selfcheck on {machine['gpu'] if gpu else machine['cpu']}")
    found = {task: _check(task, device) for task in tasks}
    rates = [] if checks_only else _measure(tasks, sizes, device)
    targets = judge(rates, device)
    for target in targets:
        say(target.line())
    took_s = perf_counter() - begin
    path = results_folder(output) / f"selfcheck_{'gpu' if gpu else 'cpu'}_{machine['id']}.json"
    write_json(
        path,
        {
            "kind": "selfcheck",
            "machine": machine,
            "command": list(command),
            "device": str(device),
            "took_s": took_s,
            "checks": {t: {k: asdict(f) for k, f in row.items()} for t, row in found.items()},
            "rates": [row.plain() for row in rates],
            "targets": [asdict(target) for target in targets],
        },
    )
    outcomes = [f.outcome for row in found.values() for f in row.values()]
    overflows = sum(row.overflows for row in rates)
    if overflows:
        say(f"FAILED: {overflows} env steps had too little room for contacts: no rate counts")
    say(
        f"{outcomes.count('passed')} checks passed, {outcomes.count('failed')} failed, "
        f"{outcomes.count('not run')} not run, in {took_s:.0f} s; written: {path}"
    )
    return 1 if "failed" in outcomes or overflows else 0


def _check(task: str, device: torch.device) -> dict[str, Found]:
    built = build_task(_config(task, device))
    results = {}
    for name, check in CHECKS.items():
        begin = perf_counter()
        try:
            found = check(built, device)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (shown, counted, and the others still run)
            traceback.print_exc()
            found = Found("failed", f"{type(error).__name__}: {error}")
        results[name] = found
        say(
            f"  {task:10s} {name:34s} {found.outcome:8s} {found.detail} "
            f"[{perf_counter() - begin:.0f} s]"
        )
    return results


def _measure(
    tasks: Sequence[str], sizes: Sequence[int] | None, device: torch.device
) -> list[Rates]:
    chosen = sizes or (GPU_SIZES if device.type == "cuda" else CPU_SIZES)
    rows = []
    say(TABLE_HEAD)
    for task in tasks:
        for size in chosen:
            config = _config(task, device, f"physics.num_envs={size}")
            rows.append(measure_rates(build_task(config), device))
            say(table_line(rows[-1]))
    for row in rows:
        say(f"  {row.task} {row.num_envs}: {row.plan}; {row.physics}")
        say("    exposed ms a step: " + _listed(row.exposed_ms))
        say("    busy ms a step:    " + _listed(row.busy_ms))
    return rows


TABLE_HEAD = (
    f"{'task':>10s} {'envs':>6s} {'physics only/s':>15s} {'collector/s':>13s} {'overhead':>9s} "
    f"{'host ms':>8s} {'update ms':>10s} {'bytes to device, to host':>25s}"
)


def table_line(row: Rates) -> str:
    """Return a row of the table as text."""
    return (
        f"{row.task:>10s} {row.num_envs:6d} {row.physics_env_steps_per_s.median:15,.0f} "
        f"{row.collector_env_steps_per_s.median:13,.0f} {100 * row.overhead.median:8.1f}% "
        f"{row.host_ms.median:8.3f} {row.update_ms.median:10.2f} "
        f"{row.to_device_bytes:>16,d}, {row.to_host_bytes:,d}"
    )


def _listed(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in times.items())


def _config(task: str, device: torch.device, *overrides: str) -> Any:
    words = ["physics.backend=mujoco_warp", f"device={device}", *overrides]
    return load_config(task, words).config


def say(text: str) -> None:
    """Print a line as soon as it is known."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201
