"""What a person reads: the table of a moment, and the verdict, as lines of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from unilab.config import RunConfig
from unilab.monitor import advice
from unilab.monitor.cpu import CpuUse
from unilab.monitor.gpu import GpuReading
from unilab.monitor.recording import Recording, Sample
from unilab.monitor.rows import StageTotals
from unilab.monitor.verdict import Verdict
from unilab.record.progress import duration, number

Column = tuple[Sequence[str], Sequence[Sequence[str]]]  # titles; rows of cells
MAX_CORES_SHOWN = 32
INDENT = "  "
_END_WORDS = {
    "finished": "the run has finished",
    "interrupted": "the run was interrupted",
    "failed": "the run has failed",
    "killed": "the run's process is gone without a word: it was killed, or it crashed",
    "stalled": "the run stalls",
    "time up": "the watch is over",
    "left": "the watch was ended",
    "unknown": "the state of the run cannot be read",
}


def head(recording: Recording, run_dir: Path) -> list[str]:
    """Two lines: which run, how far it is, how fast it goes."""
    status = recording.status
    name = f"{run_dir.parent.name}/{run_dir.name}"
    if status is None:
        return [name, "state unknown"]
    done = f"iteration {status.iteration}/{status.total_iterations}"
    parts = [name, f"pid {status.pid}", status.state, done]
    if status.state == "running":
        parts.append(f"ETA {duration(status.eta_s)}")
    rate = recording.env_steps_per_s
    speed = [f"env-steps/s {'?' if rate is None else f'{rate:,.0f}'}"]
    if status.setup.num_envs is not None:
        speed.append(f"{status.setup.num_envs} envs")
    speed.append(f"learner on {status.setup.device}")
    plan = status.setup.plan
    if plan is not None:
        speed.append(
            f"threads: physics {plan.physics}, kernel {plan.kernel}, learner {plan.learner} on "
            f"{plan.cpus} CPUs, overlap {'on' if plan.overlap else 'off'}"
        )
    return ["  ".join(parts), ", ".join(speed)]


def table(
    totals: StageTotals, cpu: CpuUse | None, gpu: GpuReading | None, name: str | None, width: int
) -> list[str]:
    """Stages, resources, pools side by side; below them cores, memory, switches and the GPU."""
    per = totals.per_iteration()
    whole = per.iteration_ms or 1.0
    stages = sorted(per.exposed_ms.items(), key=lambda item: -item[1])
    columns: list[Column] = [
        (
            ("stage", "exposed ms", "share"),
            [(stage, number(ms), f"{ms / whole:.0%}") for stage, ms in stages],
        ),
        (
            ("resource", "busy ms"),
            [(k, number(v)) for k, v in sorted(per.busy_ms.items(), key=lambda item: -item[1])],
        ),
    ]
    if cpu is not None:
        rows = [
            (
                f"{role} ({pool.threads})",
                f"{pool.cores:.0%}",
                "?" if pool.wait_cores is None else f"{pool.wait_cores:.0%}",
            )
            for role, pool in cpu.pools.items()
        ]
        columns.append((("threads", "CPU", "waiting"), rows))
    lines = side_by_side([column for column in columns if column[1]])
    below = [*(cpu_lines(cpu) if cpu is not None else []), *_gpu_lines(gpu, name)]
    return [*lines, *wrap(below, width)]


def cpu_lines(cpu: CpuUse) -> list[str]:
    """Cores, memory and context switches; each line begins with a name of 11 characters."""
    shown = " ".join(f"{fraction:.0%}" for fraction in cpu.per_core[:MAX_CORES_SHOWN])
    more = f" ... {len(cpu.per_core)} cores" if len(cpu.per_core) > MAX_CORES_SHOWN else ""
    stolen = (
        f", withheld by the hypervisor {cpu.stolen_cores:.2f}" if cpu.stolen_cores >= 0.005 else ""
    )
    waits = f", waits for a core {cpu.wait_share:.0%}" if cpu.wait_share is not None else ""
    switches = f"{cpu.voluntary_per_s:,.0f}/s voluntary, {cpu.forced_per_s:,.0f}/s forced"
    return [
        f"cores      {shown}{more}",
        f"CPU        run {cpu.cores:.2f} of {cpu.available} cores, others "
        f"{cpu.other_cores:.2f}{stolen}, monitor {cpu.monitor_cores:.3f}",
        f"memory     {cpu.rss_bytes / 2**20:,.0f} MiB resident",
        f"switches   {switches}{waits}",
    ]


def _gpu_lines(gpu: GpuReading | None, name: str | None) -> list[str]:
    if gpu is None:
        return []
    parts = [
        _part("busy", gpu.busy_fraction, "{:.0%}"),
        _part("SM active", gpu.sm_active_fraction, "{:.0%}"),
        _part("occupancy", gpu.sm_occupancy_fraction, "{:.0%}"),
        _part("tensor", gpu.tensor_fraction, "{:.0%}"),
        _part("memory bandwidth", gpu.dram_fraction, "{:.0%}"),
    ]
    gib = 2.0**30
    second = [
        _pair("memory", gpu.memory_used_bytes, gpu.memory_total_bytes, gib, "{:.1f}", "GiB"),
        _pair("power", gpu.power_w, gpu.power_limit_w, 1.0, "{:.0f}", "W"),
        _pair("clock", gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, 1.0, "{:.0f}", "MHz"),
    ]
    third = [
        _part("host to device", gpu.to_device_mb_s, "{:,.0f} MB/s"),
        _part("device to host", gpu.to_host_mb_s, "{:,.0f} MB/s"),
    ]
    rows = (", ".join(filter(None, group)) for group in (parts, second, third))
    return [f"GPU        {name or ''}", *(f"{INDENT}{row}" for row in rows if row)]


def _part(label: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{label} {form.format(value)}"


def _pair(
    label: str, value: float | None, limit: float | None, unit: float, form: str, name: str
) -> str:
    if value is None:
        return ""
    of = f" of {form.format(limit / unit)}" if limit else ""
    return f"{label} {form.format(value / unit)}{of} {name}"


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict, with what it rests on."""
    details = (*verdict.evidence, *verdict.notes)
    return [f"verdict    {verdict.sentence}", *(f"{INDENT}- {text}" for text in details)]


def hint_lines(faster: Sequence[advice.Hint], config: RunConfig | None) -> list[str]:
    """The keys to change, to be faster and to load the machine less."""
    if not faster:
        return []
    return [
        "faster",
        *(f"{INDENT}- {advice.describe(hint, config)}" for hint in faster),
        "lighter",
        *(f"{INDENT}- {advice.describe(hint, config)}" for hint in advice.LIGHTER),
    ]


def end_line(recording: Recording) -> str:
    """How the watch ended."""
    text = _END_WORDS.get(recording.end, recording.end)
    if recording.run_goes_on:
        text += "; the run goes on"
    if recording.stall is not None:
        text += f": no progress for {recording.stall.seconds:.1f} s; {recording.stall.why}"
    return text


def moment(
    recording: Recording, sample: Sample, run_dir: Path, verdict: Verdict, width: int
) -> list[str]:
    """The live page: what is now, and the verdict on all that was seen so far."""
    measured = recording.measured()
    totals = sample.totals or measured.totals
    lines = wrap(head(recording, run_dir), width)
    lines.append(f"watched {duration(sample.elapsed_s)}, the last {_seconds(sample)} below")
    lines += ["", *table(totals, sample.cpu, sample.gpu, recording.gpu_name, width), ""]
    lines += wrap(verdict_lines(verdict), width)
    return lines + wrap([f"note       {problem}" for problem in recording.problems], width)


def _seconds(sample: Sample) -> str:
    return f"{sample.cpu.seconds:.1f} s" if sample.cpu is not None else "moment"


def wrap(lines: Sequence[str], width: int) -> list[str]:
    """Break lines at a width, the rest of each indented."""
    wrapped = []
    for line in lines:
        indent = " " * (11 if line[:1].strip() else 4)
        wrapped += textwrap.wrap(line, max(40, width - 1), subsequent_indent=indent) or [""]
    return wrapped


def side_by_side(columns: Sequence[Column]) -> list[str]:
    """Tables beside each other: the first cell of a row to the left, the others to the right."""
    blocks = []
    for titles, rows in columns:
        cells = [titles, *rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
        blocks.append(
            [
                "  ".join(
                    f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
                    for i, (cell, width) in enumerate(zip(row, widths, strict=True))
                )
                for row in cells
            ]
        )
    height = max((len(block) for block in blocks), default=0)
    for block in blocks:
        block.extend([" " * len(block[0])] * (height - len(block)))
    return ["   ".join(block[i] for block in blocks).rstrip() for i in range(height)]
