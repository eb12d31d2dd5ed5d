"""The report of a watch: JSON for programs, a picture and a page for people."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unilab.config import RunConfig
from unilab.errors import ConfigError
from unilab.monitor import advice, page
from unilab.monitor.baseline import RATE, REPORT_FILE, Comparison
from unilab.monitor.html import Page
from unilab.monitor.recording import Recording
from unilab.monitor.verdict import TITLES, Verdict
from unilab.record.progress import duration, number
from unilab.runs import RUN_FILE

CSV_FILE, PICTURE_FILE, PAGE_FILE = "samples.csv", "report.png", "report.html"


@dataclass(frozen=True)
class Report:
    """All that goes into a report.

    Attributes:
      machine: this one, as in results files.
      config: the run's; None where it cannot be read.
      command: what was typed.
      comparison: with the baseline; None where none was given.
    """

    run_dir: Path
    recording: Recording
    verdict: Verdict
    machine: Mapping[str, Any]
    config: RunConfig | None
    command: Sequence[str]
    comparison: Comparison | None

    def hints(self) -> tuple[advice.Hint, ...]:
        """What to change to be faster."""
        plan = self.recording.setup.plan
        return advice.hints(self.verdict.bound_by, self.verdict.stage, plan, self.config)

    def run_facts(self) -> dict[str, Any]:
        """What makes runs comparable, and where this one stands."""
        status, setup = self.recording.status, self.recording.setup
        return {
            "dir": str(self.run_dir),
            "task": setup.task or (self.config.task if self.config else None),
            "num_envs": setup.num_envs or (self.config.physics.num_envs if self.config else None),
            "device": setup.device if status is not None else None,
            "plan": asdict(setup.plan) if setup.plan is not None else None,
            "state": status.state if status is not None else None,
            "revision": _revision(self.run_dir),
            "iteration": status.iteration if status is not None else None,
            "total_iterations": status.total_iterations if status is not None else None,
        }


def prepare_folder(folder: Path) -> None:
    """Make the folder of a report.

    Raises:
      ConfigError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = os.access(folder, os.W_OK)
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror or error}") from None
    if not there:
        raise ConfigError(f"--output {folder}: cannot be written to; give another folder")


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as plain JSON. Times are of one iteration, ms."""
    recording, verdict = report.recording, report.verdict
    measured = recording.measured()
    per = measured.totals.per_iteration()
    found = report.hints()
    gpu = None
    if measured.gpu is not None:
        gpu = {"name": recording.gpu_name} | asdict(measured.gpu)
    return {
        "machine": dict(report.machine) | {"date": time.strftime("%Y-%m-%d")},
        "command": " ".join(report.command),
        "run": report.run_facts(),
        "watched": {
            "begin_unix_s": recording.begin_unix_s,
            "seconds": recording.seconds,
            "end": recording.end,
            "stalled_s": recording.stall.seconds if recording.stall else None,
            "iterations": measured.totals.iterations,
        },
        RATE: recording.env_steps_per_s,
        "iteration_ms": per.iteration_ms,
        "exposed_ms": per.exposed_ms,
        "busy_ms": per.busy_ms,
        "cpu": asdict(measured.cpu) if measured.cpu is not None else None,
        "gpu": gpu,
        "verdict": asdict(verdict)
        | {
            "balance": verdict.balance if math.isfinite(verdict.balance) else None,
            "matmul_flops": measured.matmul_flops,
            "faster": [_hint(hint) for hint in found],
            "lighter": [_hint(hint) for hint in advice.LIGHTER],
        },
        "baseline": asdict(report.comparison) if report.comparison is not None else None,
        "problems": list(recording.problems),
    }


def _revision(run_dir: Path) -> str | None:
    """The commit that the run was started from, where it was one."""
    try:
        git = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8")).get("git")
    except (OSError, ValueError, AttributeError):
        return None
    revision = git.get("revision") if isinstance(git, dict) else None
    return revision if isinstance(revision, str) else None


def _hint(hint: advice.Hint) -> dict[str, Any]:
    return {"keys": list(hint.keys), "text": hint.text}


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.json, report.png and report.html; each replaces an earlier one as a whole.

    Returns the files, the page first.
    """
    from unilab.monitor.charts import draw_report

    text = json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
    _replace(folder / REPORT_FILE, text.encode())
    name = f"{report.run_dir.parent.name}/{report.run_dir.name}"
    picture = draw_report(report.recording, report.verdict, name)
    _replace(folder / PICTURE_FILE, picture)
    _replace(folder / PAGE_FILE, to_html(report, picture).encode())
    return [folder / PAGE_FILE, folder / PICTURE_FILE, folder / REPORT_FILE]


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def summary(report: Report, width: int) -> str:
    """Return what is printed when the watch is over."""
    recording, measured = report.recording, report.recording.measured()
    lines = page.wrap(page.head(recording, report.run_dir), width)
    shown = page.table(measured.totals, measured.cpu, measured.gpu, recording.gpu_name, width)
    lines += ["", *shown, ""]
    lines += page.wrap(page.verdict_lines(report.verdict), width)
    lines += page.wrap(page.hint_lines(report.hints(), report.config), width)
    if report.comparison is not None:
        lines += page.wrap([report.comparison.text], width)
    lines += page.wrap([f"note       {problem}" for problem in recording.problems], width)
    lines += page.wrap([f"end        {page.end_line(recording)}"], width)
    return "\n".join(lines)


def to_html(report: Report, picture: bytes) -> str:
    """Return the report as one page."""
    recording, verdict = report.recording, report.verdict
    name = f"{report.run_dir.parent.name}/{report.run_dir.name}"
    built = Page(f"unilab monitor: {name}")
    for line in page.head(recording, report.run_dir)[1:]:
        built.text(line, "faint")
    built.text(verdict.sentence, "verdict")
    built.items([*verdict.evidence, *verdict.notes])
    if recording.end in ("stalled", "failed", "killed", "unknown"):
        built.text(page.end_line(recording), "verdict bad")
    if report.comparison is not None:
        bad = report.comparison.failed or report.comparison.refused
        built.text(report.comparison.text, "verdict bad" if bad else "")
    built.picture(picture, "stages, costs, cores, waits, speed and memory over the watch")
    if verdict.bound_by is not None:
        built.heading("To be faster")
        built.items([advice.describe(hint, report.config) for hint in report.hints()])
        built.heading("To load the machine less")
        built.items([advice.describe(hint, report.config) for hint in advice.LIGHTER])
    built.heading("Figures")
    built.tables(_tables(report))
    if recording.problems:
        built.heading("What could not be read")
        built.items(recording.problems)
    built.text(_footer(report), "faint")
    return built.render()


def _tables(report: Report) -> dict[str, tuple[Sequence[str], Sequence[Sequence[str]]]]:
    measured = report.recording.measured()
    per, cpu = measured.totals.per_iteration(), measured.cpu
    whole = per.iteration_ms or 1.0
    stages = sorted(per.exposed_ms.items(), key=lambda item: -item[1])
    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = {
        "Exposed, by stage": (
            ("stage", "ms", "share"),
            [(name, number(ms), f"{ms / whole:.1%}") for name, ms in stages],
        ),
        "Busy, by resource": (
            ("resource", "ms"),
            [(name, number(ms)) for name, ms in sorted(per.busy_ms.items(), key=lambda i: -i[1])],
        ),
        "If it cost nothing": (
            ("resource", "exposed ms", "saved ms", "faster"),
            [
                (TITLES[name], number(cost.exposed_ms), number(cost.saved_ms),
                 f"{cost.speedup:.2f} x")
                for name, cost in sorted(
                    report.verdict.costs.items(), key=lambda item: -item[1].saved_ms
                )
            ],
        ),
    }  # fmt: skip
    if cpu is not None:
        tables["Threads"] = (
            ("pool", "threads", "cores", "waiting"),
            [
                (role, str(pool.threads), f"{pool.cores:.2f}",
                 "?" if pool.wait_cores is None else f"{pool.wait_cores:.2f}")
                for role, pool in cpu.pools.items()
            ],
        )  # fmt: skip
        tables["CPU"] = (
            ("", ""),
            [(line[:11].strip(), line[11:]) for line in page.cpu_lines(cpu)],
        )
    if measured.gpu is not None:
        gpu = [(k, f"{v:,.4g}") for k, v in asdict(measured.gpu).items() if v is not None]
        tables[f"GPU {report.recording.gpu_name or ''}"] = (("counter", "mean"), gpu)
    return tables


def _footer(report: Report) -> str:
    machine, recording = report.machine, report.recording
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.begin_unix_s))
    return (
        f"Watched {duration(recording.seconds)} from {began}, "
        f"{recording.measured().totals.iterations} iterations. {machine['cpu']}, "
        f"{machine['cpus']} CPUs, {machine['platform']}; {versions}. "
        f"Command: {' '.join(report.command)}"
    )
