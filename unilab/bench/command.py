"""`unilab bench`: records inputs, measures in fresh processes, prints and writes the table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab.bench.chart import draw
from unilab.bench.machine import header, machine_id
from unilab.bench.processes import Stages, run_worker
from unilab.bench.results import (
    FORMAT,
    KIND,
    make_rows,
    result_stem,
    results_folder,
    write_json,
)
from unilab.bench.show import Show, say
from unilab.bench.table import table_markdown, table_text
from unilab.bench.traffic import Traffic, step_traffic
from unilab.config import LoadedConfig, task_label
from unilab.tasks.base import BuiltTask, build_task

DEFAULT_ENVS = 8192
RECORD_LENGTH, MEASURE_LENGTH = 0.3, 1.0  # of the jobs, for the time left


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
      processes: fresh processes.
      recorded_steps: control steps of input.
      host_s, collect_s: how long one process spends on host steps and on the collector, s.
      cache_bytes: taken for the last-level cache; None asks the system.
    """

    processes: int = 3
    recorded_steps: int = 6
    host_s: float = 8.0
    collect_s: float = 40.0
    cache_bytes: int | None = None


QUICK = Effort(processes=1, host_s=5.0, collect_s=22.0)


def bench(
    loaded: LoadedConfig,
    overrides: Sequence[str],
    *,
    num_envs: int | None = None,
    effort: Effort | None = None,
    output: Path | None = None,
    command: Sequence[str] = (),
) -> int:
    """Measure a task, print its table, and write JSON, Markdown and a picture.

    Args:
      loaded: config of the task.
      overrides: what it was loaded with.
      num_envs: N; None takes the command line's, else 8,192.
      effort: None takes the full one.
      output: folder of the files.
      command: as typed, for the record.

    Raises:
      ConfigError: the task, a value or the folder is not right.
      UnilabError: the NumPy baseline and the kernel disagree, or a process failed.
    """
    effort = effort or Effort()
    folder = results_folder(output)
    built = build_task(loaded.config)
    count = choose_envs(loaded, num_envs)
    machine = {**header(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    with tempfile.TemporaryDirectory() as scratch, Show() as show:
        job = {
            "task": loaded.config.task,
            "overrides": list(overrides),
            "num_envs": count,
            "recorded_steps": effort.recorded_steps,
            "host_s": effort.host_s,
            "collect_s": effort.collect_s,
            "cache_bytes": effort.cache_bytes,
            "recording": str(Path(scratch) / "recording.pkl"),
        }
        processes = run_processes(job, effort.processes, show)
    traffic = step_traffic(built.kernel, built.config.physics.substeps)
    content: dict[str, Any] = {
        "format": FORMAT,
        "machine": machine,
        "command": " ".join(_without_folders(word) for word in command),
        "task": task_label(loaded.config.task),
        "num_envs": count,
        **_bytes(built, traffic, count, processes[0]["done_per_step"]),
        "processes": processes,
    }
    rows = make_rows(processes, content["step_bytes"], content["buffer_bytes"])
    content["rows"] = [row.plain() for row in rows]
    stem = folder / result_stem(KIND, loaded.config.task, machine_id())
    write_json(stem.with_suffix(".json"), content)
    stem.with_suffix(".md").write_text(table_markdown(content))
    draw(content, stem.with_suffix(".png"))
    say(table_text(content))
    say(f"written: {stem}.json, .md and .png")
    return 0


def run_processes(job: dict[str, Any], count: int, show: Callable[[str], None]) -> list[Any]:
    """Record the inputs, then measure in fresh processes, one after the other."""
    stages = Stages([RECORD_LENGTH, *[MEASURE_LENGTH] * count], show)
    run_worker({**job, "mode": "record"}, stages.within("inputs"))
    stages.finish()
    results: list[dict[str, Any]] = []
    for number in range(count):
        # The first process chooses the last row; the others measure the same one.
        combined = results[0]["choices"][-1] if results else None
        results.append(
            run_worker(
                {**job, "mode": "measure", "combined": combined},
                stages.within(f"process {number + 1} of {count}"),
            )
        )
        stages.finish()
    return results


def choose_envs(loaded: LoadedConfig, given: int | None) -> int:
    """Return N: the option, else what the command line set, else the default."""
    if given is not None:
        return given
    if loaded.origins.get("physics.num_envs") == "command line":
        return loaded.config.physics.num_envs
    return DEFAULT_ENVS


def _without_folders(word: str) -> str:
    """Leave out where things are on this machine."""
    return Path(word).name if Path(word).is_absolute() else word


def _bytes(built: BuiltTask, traffic: Traffic, num_envs: int, done: float) -> dict[str, float]:
    kernel = built.kernel
    actions = len(built.model.ctrl_offset)
    floats = kernel.num_obs + kernel.num_critic_obs + 2 * actions + 2
    return {
        "step_bytes": traffic.total(num_envs, done),
        "kernel_bytes": traffic.kernel_bytes * num_envs,
        "buffer_bytes": num_envs * 2.0 * (4 * floats + 2),  # read and written
    }
