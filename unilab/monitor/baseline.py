"""A stored result that a run is held against: a report of the monitor, or a file of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab.errors import ConfigError, nearest
from unilab.monitor.json_values import number, whole
from unilab.monitor.machine import differences

REPORT_FILE = "report.json"
REPORT_FOLDER = "monitor"
RESULTS = Path("benchmark") / "results"
# A run that is slower than this share of its baseline has fallen behind.
LEAST = 0.9
RATE = "env_steps_per_s"


@dataclass(frozen=True)
class Baseline:
    """What is known of an earlier run.

    Attributes:
      path: where it is stored.
      env_steps_per_s: its rate.
      machine: as in results files.
      task, num_envs, device: of the run; None where the file does not say.
    """

    path: Path
    env_steps_per_s: float
    machine: Mapping[str, Any]
    task: str | None
    num_envs: int | None
    device: str | None


@dataclass(frozen=True)
class Comparison:
    """How a run stands to its baseline.

    Attributes:
      ratio: of the rates, this run's over the baseline's; None where they are not compared.
      failed: the run is more than 10 % slower.
      refused: the baseline is not one for this run; the user's mistake.
      text: for a person.
    """

    ratio: float | None
    failed: bool
    refused: bool
    text: str


def load_baseline(name: str, log_dir: Path) -> Baseline:
    """Read a baseline.

    Args:
      name: a JSON file; a run directory that holds a report of the monitor; the name of such a run
        (TASK/NAME) under `log_dir`; or the name of a file in benchmark/results.
      log_dir: folder of all runs.

    Raises:
      ConfigError: no such file, broken JSON, or a file without a rate.
    """
    path = _find(name, log_dir)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--baseline: {path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--baseline: {path} is no results file: it holds no table of figures")
    raw = values.get(RATE)
    found = number(raw.get("median") if isinstance(raw, dict) else raw)
    if found is None or found <= 0:
        raise ConfigError(
            f"--baseline: {path} has no '{RATE}' (a number, or a table with its median); give a "
            f"{REPORT_FILE} of the monitor, or a file of benchmark/results that has it"
        )
    machine, run = values.get("machine"), values.get("run")
    run = run if isinstance(run, dict) else {}
    return Baseline(
        path=path,
        env_steps_per_s=found,
        machine=machine if isinstance(machine, dict) else {},
        task=run.get("task") if isinstance(run.get("task"), str) else None,
        num_envs=whole(run.get("num_envs")),
        device=run.get("device") if isinstance(run.get("device"), str) else None,
    )


def compare(
    baseline: Baseline,
    env_steps_per_s: float | None,
    machine: Mapping[str, Any],
    run: Mapping[str, Any],
    *,
    any_machine: bool,
) -> Comparison:
    """Hold a run against its baseline.

    Args:
      baseline: what it is held against.
      env_steps_per_s: of the run; None is not known.
      machine: this one.
      run: task, num_envs and device of the run.
      any_machine: compare with a figure of another machine too.
    """
    refusal = refuse(baseline, machine, run, any_machine=any_machine)
    if refusal is not None:
        return Comparison(None, failed=False, refused=True, text=refusal)
    if env_steps_per_s is None:
        text = "baseline: not compared: the run has not told its env steps a second yet"
        return Comparison(None, failed=False, refused=False, text=text)
    ratio = env_steps_per_s / baseline.env_steps_per_s
    failed = ratio < LEAST
    notes = [
        f"{key} {there} there and {run.get(key)} here"
        for key, there in (("num_envs", baseline.num_envs), ("device", baseline.device))
        if there is not None and run.get(key) is not None and there != run.get(key)
    ]
    text = (
        f"baseline: {env_steps_per_s:,.0f} env-steps/s is {ratio:.2f} x the "
        f"{baseline.env_steps_per_s:,.0f} of {baseline.path}"
        + (f": more than {1 - LEAST:.0%} slower" if failed else "")
        + (f" ({'; '.join(notes)})" if notes else "")
    )
    return Comparison(ratio, failed=failed, refused=False, text=text)


def refuse(
    baseline: Baseline, machine: Mapping[str, Any], run: Mapping[str, Any], *, any_machine: bool
) -> str | None:
    """Return why a baseline is not one for this run, or None."""
    task = run.get("task")
    if baseline.task is not None and task is not None and baseline.task != task:
        return (
            f"baseline: not compared: {baseline.path} is of task {baseline.task}, this run is of "
            f"{task}; give one of the same task"
        )
    others = differences(machine, baseline.machine)
    if others and not any_machine:
        return (
            f"baseline: not compared: {baseline.path} is from another machine ({'; '.join(others)})"
            "; give one of this machine, or --any-machine to compare all the same"
        )
    return None


def _find(name: str, log_dir: Path) -> Path:
    given = Path(name).expanduser()
    candidates = [
        given,
        given / REPORT_FOLDER / REPORT_FILE,
        given / REPORT_FILE,
        log_dir / name / REPORT_FOLDER / REPORT_FILE,
        RESULTS / name,
        RESULTS / f"{name}.json",
    ]
    for path in candidates:
        if path.is_file():
            return path
    stored = [path.stem for path in RESULTS.glob("*.json")]
    stored += [str(path.parents[1]) for path in log_dir.glob(f"*/*/{REPORT_FOLDER}/{REPORT_FILE}")]
    raise ConfigError(
        f"--baseline: nothing is stored as '{name}'; give a JSON file, a run that was monitored, "
        f"or a name in {RESULTS}; {nearest(name, stored)}"
    )
