"""Results of benchmarks: one JSON file a task, machine and commit, and what its rows say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab.bench.choices import BUFFER, HOST, STAGE_OF, STEP
from unilab.bench.machine import ROOT, this_commit
from unilab.errors import ConfigError

FORMAT = 1  # of the JSON file
KIND = "bench"


@dataclass(frozen=True)
class Spread:
    """A figure of several fresh processes."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Return median, smallest and largest."""
        found = list(values)
        return Spread(statistics.median(found), min(found), max(found))

    def plain(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
      key, title: of the choice.
      timed: what `ms` is of.
      absent: why it was not run; the rest is then None.
      ms: per control step.
      speedup: over the row that it refers to; None for that row's own kind of work not timed.
      against: title of that row.
      moved_bytes: read and written by a control step.
      bandwidth_share: of what a copy on all CPUs moves in the same time.
      env_steps_per_s, ceiling_env_steps_per_s: end to end, and if the host step took no time.
    """

    key: str
    title: str
    timed: str
    absent: str = ""
    ms: Spread | None = None
    speedup: Spread | None = None
    against: str = ""
    moved_bytes: float | None = None
    bandwidth_share: float | None = None
    env_steps_per_s: Spread | None = None
    ceiling_env_steps_per_s: Spread | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            name: value.plain() if isinstance(value, Spread) else value
            for name, value in vars(self).items()
        }

    @staticmethod
    def read(content: Mapping[str, Any]) -> Row:
        """Return a row that `plain` wrote."""
        values: dict[str, Any] = {
            name: Spread(value["median"], value["min"], value["max"])
            if isinstance(value, dict)
            else value
            for name, value in content.items()
        }
        return Row(**values)


def make_rows(
    processes: Sequence[Mapping[str, Any]], step_bytes: float, row_bytes: float
) -> list[Row]:
    """Put the figures of all processes into rows.

    Args:
      processes: what each measured.
      step_bytes: moved by the host step.
      row_bytes: moved by the buffer in a control step.
    """
    choices = processes[0]["choices"]
    titles = {choice["key"]: choice["title"] for choice in choices}
    times = {c["key"]: [_time(p, c) for p in processes] for c in choices if not c["absent"]}
    bandwidth = statistics.median(p["bandwidth"]["all_threads_bytes_per_s"] for p in processes)
    rows = []
    for choice in choices:
        key, timed = choice["key"], choice["timed"]
        if choice["absent"]:
            rows.append(Row(key, choice["title"], timed, choice["absent"]))
            continue
        ms = Spread.of(times[key])
        moved = {HOST: step_bytes, BUFFER: row_bytes, STEP: None}.get(timed)
        reference = times.get(choice["against"])
        passes = [p["passes"][key] for p in processes]
        rows.append(
            Row(
                key,
                choice["title"],
                timed,
                ms=ms,
                speedup=None
                if reference is None
                else Spread.of(a / b for a, b in zip(reference, times[key], strict=True)),
                against=titles[choice["against"]],
                moved_bytes=moved,
                bandwidth_share=None if moved is None else moved / (ms.median * 1e-3) / bandwidth,
                env_steps_per_s=Spread.of(p["env_steps_per_s"] for p in passes),
                ceiling_env_steps_per_s=Spread.of(p["ceiling_env_steps_per_s"] for p in passes),
            )
        )
    return rows


def _time(process: Mapping[str, Any], choice: Mapping[str, Any]) -> float:
    """Return what a row is about, ms per control step."""
    key, timed = choice["key"], choice["timed"]
    if timed == HOST:
        measured: float = process["host_ms"].get(key, process["passes"][key]["host_ms"])
        return measured
    stage: float = process["passes"][key]["stages_ms"][STAGE_OF[timed]]
    return stage


# -- files ----------------------------------------------------------------------------------------


def results_folder(output: Path | None = None) -> Path:
    """Return where results go: what was asked for, the checkout's benchmark/results, or here.

    Raises:
      ConfigError: it cannot be written to.
    """
    in_checkout = ROOT / "benchmark" / "results"
    folder = output or (in_checkout if in_checkout.is_dir() else Path("benchmark_results"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"--output {folder}: cannot write there ({error.strerror}); give another folder"
        ) from error
    return folder


def result_stem(kind: str, task: str, machine: str) -> str:
    """Return the name of a result without ending: kind, task, machine and commit."""
    return f"{kind}_{Path(task).stem}_{machine}_{this_commit().label}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result; it appears whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


def read_results(folder: Path, kind: str = KIND) -> list[dict[str, Any]]:
    """Return all results of a kind in a folder, oldest first; files of other formats are left out.

    Raises:
      ConfigError: a file of this kind cannot be read.
    """
    found = []
    for path in sorted(folder.glob(f"{kind}_*.json")):
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as a result: {error}") from error
        if isinstance(content, dict) and content.get("format") == FORMAT:
            found.append({**content, "file": path.name})
    return sorted(found, key=lambda content: str(content["machine"].get("time", "")))
