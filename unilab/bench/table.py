"""The table of a benchmark, as text for a terminal of 100 columns and as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from unilab.bench.results import Row, Spread

TITLE_WIDTH = 38
_HEAD = (
    f"{'':{TITLE_WIDTH}}{'ms per control step':>22}{'speed':>7}{'MB':>7}{'of':>5}"
    f"{'env-steps/s':>12}{'':>9}",
    f"{'':{TITLE_WIDTH}}{'median (min-max)':>22}{'-up':>7}{'moved':>7}{'b/w':>5}"
    f"{'end to end':>12}{'ceiling':>9}",
)


def table_text(content: Mapping[str, Any]) -> str:
    """Return a result as lines of at most 100 columns."""
    lines = [_title(content), *_HEAD]
    timed = None
    for row in rows_of(content):
        if row.timed != timed and row.key != "combined":
            timed = row.timed
            lines.append(f"{timed}")
        lines += _line(row)
    return "\n".join([*lines, "", *_wrapped(notes(content))])


def table_markdown(content: Mapping[str, Any]) -> str:
    """Return a result as a Markdown section."""
    machine = content["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    lines = [
        f"## {content['task']}, {content['num_envs']:,} envs, commit {machine['commit']}"
        + (f" with {machine['changed_files']} changed files" if machine["changed_files"] else ""),
        "",
        f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['gpu'] or 'no GPU'}; {versions}; "
        f"{machine['date']}. `{content['command']}`",
        "",
        "| row | timed | ms per control step | speed-up | MB moved | of bandwidth | env-steps/s "
        "end to end | ceiling |",
        "|--|--|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows_of(content):
        if row.absent:
            lines.append(f"| {row.title} | {row.timed} | {row.absent} | | | | | |")
            continue
        cells = [
            row.title,
            row.timed,
            _range(row.ms, 3),
            "" if row.speedup is None else f"{_range(row.speedup, 2)}",
            _megabytes(row),
            _percent(row),
            _rate(row.env_steps_per_s),
            _rate(row.ceiling_env_steps_per_s),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(content)), ""])


def rows_of(content: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a stored result."""
    return [Row.read(row) for row in content["rows"]]


def notes(content: Mapping[str, Any]) -> list[str]:
    """Return what is to be known beside the table, one sentence or two each."""
    processes = content["processes"]
    found = [
        f"Median of {len(processes)} fresh process(es), min and max in brackets. Speed-up of a "
        "host step: over NumPy on one thread; of buffer, policy and control step: over the first "
        "row of the pair.",
        "Host step: all of a control step but physics, policy and buffer, on states recorded from "
        f"the running task ({processes[0]['done_per_step']:.0f} episodes end in a step). End to "
        "end: a collector with the row's choice; ceiling: the same if its host step took no time.",
        _bytes_note(content),
        *_scaling_note(processes),
        *_parts_note(content),
        *_agreement_note(processes),
    ]
    return found


def _bytes_note(content: Mapping[str, Any]) -> str:
    band = content["processes"][0]["bandwidth"]
    size = band["array_bytes"] / 2**20
    times = band["array_bytes"] / band["cache_bytes"]
    gigabytes = [
        Spread.of(p["bandwidth"][name] / 1e9 for p in content["processes"])
        for name in ("one_thread_bytes_per_s", "all_threads_bytes_per_s")
    ]
    short = "" if times >= 4 else ", less than 4 times for want of free memory"
    return (
        f"Bandwidth: copying {size:,.0f} MiB ({times:.1f} times the last-level cache{short}) moves "
        f"{_range(gigabytes[0], 1)} GB/s on one thread, {_range(gigabytes[1], 1)} on all. Bytes "
        "moved: what the kernels read and write, each number once; NumPy's temporaries are not "
        "counted."
    )


def _scaling_note(processes: list[Mapping[str, Any]]) -> list[str]:
    if processes[0]["scaling"] is None:
        return []
    gains = {
        name: Spread.of(p["scaling"][f"{name}_gain"] for p in processes)
        for name in ("host", "kernel", "loop")
    }
    return [
        f"One to two shards gains {_range(gains['host'], 2)} (step kernel alone "
        f"{_range(gains['kernel'], 2)}); a pure arithmetic loop of equal length gains "
        f"{_range(gains['loop'], 2)} in the same run."
    ]


def _parts_note(content: Mapping[str, Any]) -> list[str]:
    processes = content["processes"]
    if processes[0]["scaling"] is None:
        return []
    kernel = Spread.of(p["scaling"]["kernel_ms"] for p in processes).median
    band = Spread.of(p["bandwidth"]["one_thread_bytes_per_s"] for p in processes).median
    names = processes[0]["parts_ms"]
    parts = {name: Spread.of(p["parts_ms"][name] for p in processes).median for name in names}
    memory = content["kernel_bytes"] / band * 1e3
    listed = ", ".join(f"{name} {value:.2g}" for name, value in parts.items())
    return [
        f"Step kernel on one thread: {kernel:.3g} ms; its bytes alone would take {memory:.2g} ms "
        f"at the full bandwidth of one thread ({100 * memory / kernel:.0f} %). Loops that do one "
        f"thing only take: {listed} ms (gather: read and convert the state). Not explained by "
        f"them: {kernel - sum(parts.values()):.2g} ms (arithmetic, branches, statistics). All "
        "estimates: in the kernel they overlap."
    ]


def _agreement_note(processes: list[Mapping[str, Any]]) -> list[str]:
    agreement = processes[0]["agreement"]
    if agreement is None:
        return []
    return [
        f"NumPy and kernel agree in every process: {len(agreement['arrays'])} arrays over "
        f"{agreement['steps']} steps with {agreement['done']} ends of episodes and "
        f"{agreement['pushed']} pushes, equal random numbers, largest relative difference "
        f"{agreement['largest_difference']:.0e}, {agreement['stray_envs']} envs apart by rounding "
        "at a threshold. NumPy's timed noise: 64-bit integers of SFC64 read as pairs of int32, "
        "the quickest uniform float32 that NumPy has."
    ]


def _title(content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    changed = "+changes" if machine["changed_files"] else ""
    return (
        f"{content['task']}: {content['num_envs']:,} envs, {machine['cpus']} CPUs "
        f"({machine['cpu']}), commit {machine['commit']}{changed}"
    )[:100]


def _line(row: Row) -> list[str]:
    if len(row.title) + 2 > TITLE_WIDTH:  # a line of its own
        rest = _line(Row(**{**vars(row), "title": ""}))
        return [f"  {row.title}", *rest]
    title = f"  {row.title:{TITLE_WIDTH - 2}}"
    if row.absent:
        return [f"{title}{row.absent}"[:100]]
    speedup = "" if row.speedup is None else f"{row.speedup.median:.3g}x"
    return [
        f"{title}{_range(row.ms, 3):>22}{speedup:>7}{_megabytes(row):>7}{_percent(row):>5}"
        f"{_rate(row.env_steps_per_s):>12}{_rate(row.ceiling_env_steps_per_s):>9}"
    ]


def _range(spread: Spread | None, digits: int) -> str:
    """Return median (min-max); the median has at least so many significant digits."""
    if spread is None:
        return ""
    scale = math.floor(math.log10(spread.median)) if spread.median > 0 else 0
    places = max(0, digits - 1 - scale)
    median, low, high = (f"{v:,.{places}f}" for v in (spread.median, spread.low, spread.high))
    return median if low == high else f"{median} ({low}-{high})"


def _megabytes(row: Row) -> str:
    return "" if row.moved_bytes is None else f"{row.moved_bytes / 1e6:.3g}"


def _percent(row: Row) -> str:
    return "" if row.bandwidth_share is None else f"{100 * row.bandwidth_share:.0f}%"


def _rate(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:,.0f}"


def _wrapped(texts: list[str]) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, 100)]
