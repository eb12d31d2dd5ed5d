"""Rebuilds the Markdown and pictures of all stored results, machine by machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unilab.bench.chart import draw, draw_history
from unilab.bench.results import KIND, Row, read_results
from unilab.bench.table import rows_of, table_markdown
from unilab.errors import ConfigError

Content = Mapping[str, Any]


def rebuild(folder: Path) -> list[Path]:
    """Write a report for each machine that has results, and the picture of each result anew.

    Args:
      folder: of the results.

    Returns:
      The reports.

    Raises:
      ConfigError: the folder has no result, or a file cannot be read.
    """
    by_machine: dict[str, list[Content]] = defaultdict(list)
    for content in read_results(folder, KIND):
        by_machine[content["machine"]["id"]].append(content)
    if not by_machine:
        raise ConfigError(
            f"{folder}: there is no result of `unilab bench` here; run one, or give its folder"
        )
    return [_machine(folder, machine, found) for machine, found in sorted(by_machine.items())]


def _machine(folder: Path, machine: str, found: Sequence[Content]) -> Path:
    """Write the report of one machine: the latest result of each task and size, and its history."""
    newest: dict[tuple[str, int], Content] = {}
    for content in found:  # oldest first
        newest[content["task"], content["num_envs"]] = content
    lines = [f"# Benchmarks on {machine}", ""]
    for (task, num_envs), content in sorted(newest.items()):
        picture = Path(content["file"]).with_suffix(".png")
        draw(content, folder / picture)
        lines += [table_markdown(content), f"![{task}, {num_envs} envs]({picture})", ""]
        past = [c for c in found if (c["task"], c["num_envs"]) == (task, num_envs)]
        if len(past) > 1:
            history = Path(f"history_{task}_{num_envs}_{machine}.png")
            draw_history(past, folder / history)
            lines += [*_history(past), "", f"![history]({history})", ""]
    path = folder / f"report_{machine}.md"
    path.write_text("\n".join(lines))
    return path


def _history(past: Sequence[Content]) -> list[str]:
    lines = [
        "| commit | date | NumPy, one thread (ms) | host step (ms) | speed-up | env-steps/s |",
        "|--|--|--:|--:|--:|--:|",
    ]
    for content in past:
        rows = {row.key: row for row in rows_of(content)}
        best = rows["combined"]
        machine = content["machine"]
        changed = "+changes" if machine["changed_files"] else ""
        lines.append(
            f"| {machine['commit']}{changed} | {machine['date']} | "
            f"{_median(rows.get('numpy'), 'ms')} | {_median(best, 'ms')} | "
            f"{_median(best, 'speedup')} | "
            f"{_median(best, 'env_steps_per_s')} |"
        )
    return lines


def _median(row: Row | None, name: str) -> str:
    spread = None if row is None else getattr(row, name)
    if spread is None:
        return ""
    return f"{spread.median:,.0f}" if spread.median >= 1000 else f"{spread.median:.3g}"
