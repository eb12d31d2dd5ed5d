"""The picture of a benchmark: how long each way takes, and what it does to the whole collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unilab.bench.choices import HOST
from unilab.bench.results import Row
from unilab.bench.table import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, BAR, CEILING = "#22303c", "#c9d1d9", "#0969da", "#bf8700"


def draw(content: Mapping[str, Any], path: Path) -> None:
    """Draw a result as a PNG: host step on the left, end to end on the right.

    Args:
      content: the stored result.
      path: where to.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    ran = [row for row in rows_of(content) if not row.absent]
    host = [row for row in ran if row.timed == HOST]
    height = 1.6 + 0.36 * max(len(host), len(ran))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, height), layout="constrained")
    _draw_times(left, host)
    _draw_rates(right, ran)
    machine = content["machine"]
    figure.suptitle(
        f"{content['task']}, {content['num_envs']:,} envs, {machine['cpus']} x {machine['cpu']}, "
        f"{machine['gpu'] or 'no GPU'}, commit {machine['commit']}, {machine['date']}",
        color=INK,
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_times(axes: Axes, rows: list[Row]) -> None:
    times = [row.ms for row in rows if row.ms is not None]
    medians = [t.median for t in times]
    errors = [
        [t.median - t.low for t in times],
        [t.high - t.median for t in times],
    ]
    places = range(len(rows))
    axes.barh(places, medians, color=BAR, xerr=errors, ecolor=INK, height=0.65)
    for place, row in zip(places, rows, strict=True):
        if row.ms is not None and row.speedup is not None:
            axes.annotate(
                f" {row.ms.median:.3g} ms, {row.speedup.median:.2g}x",
                (row.ms.high, place),
                va="center",
                color=INK,
                fontsize=8,
            )
    axes.set_xlim(0, 1.35 * max(t.high for t in times))
    axes.set_xlabel("host step, ms per control step (less is better)")
    _finish(axes, rows)


def _draw_rates(axes: Axes, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        rate, ceiling = row.env_steps_per_s, row.ceiling_env_steps_per_s
        if rate is None or ceiling is None:
            continue
        axes.barh(place, rate.median, color=BAR, height=0.65)
        axes.plot([rate.low, rate.high], [place, place], color=INK, linewidth=1.2)
        axes.plot([ceiling.median] * 2, [place - 0.35, place + 0.35], color=CEILING, linewidth=2)
    axes.plot([], [], color=CEILING, linewidth=2, label="if the host step took no time")
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    axes.set_xlabel("env-steps per second, end to end (more is better)")
    _finish(axes, rows)


def _finish(axes: Axes, rows: list[Row]) -> None:
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_history(past: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw how the last row's host step and rate changed from commit to commit.

    Args:
      past: stored results of one task, size and machine, oldest first.
      path: where to.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 3.2), layout="constrained")
    rows = [next(row for row in rows_of(content) if row.key == "combined") for content in past]
    labels = [content["machine"]["commit"] for content in past]
    for axes, name, title in (
        (panels[0], "ms", "host step, ms per control step"),
        (panels[1], "env_steps_per_s", "env-steps per second, end to end"),
    ):
        spreads = [getattr(row, name) for row in rows]
        axes.plot(range(len(rows)), [s.median for s in spreads], "o-", color=BAR)
        axes.vlines(
            range(len(rows)), [s.low for s in spreads], [s.high for s in spreads], color=INK
        )
        axes.set_xticks(range(len(rows)), labels, rotation=30, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9, color=INK)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
