"""Pictures of learning curves, drawn from the metrics files of runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unilab.errors import ConfigError
from unilab.record.metrics_file import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Column = NDArray[np.float64]  # (lines,), nan where a line does not have the metric
INK, FAINT = "#22303c", "#c9d1d9"
COLORS = (
    *("#0969da", "#d1242f", "#1a7f37", "#8250df", "#bf8700", "#0f7b8a"),
    *("#bf3989", "#57606a", "#7d4e00", "#4ac26b", "#a475f9", "#ff8182"),
)
# Points a curve is drawn with at most; longer runs are averaged down to it.
MAX_POINTS = 600
LEVEL = "curriculum/terrain_level"
# Common x positions of the curves that compare_curves averages.
GRID_POINTS = 200


class Curves:
    """The metrics of one run as columns.

    Args:
      path: a metrics.jsonl.

    Attributes:
      x_steps: (lines,) env steps in millions; iterations where the run does not count env steps.
      minutes: (lines,) training time.

    Raises:
      ConfigError: no such file, or no complete line in it.
    """

    def __init__(self, path: Path | str) -> None:
        lines = list(read_metrics(path))
        if not lines:
            raise ConfigError(f"{path} holds no complete iteration yet; nothing to draw")
        names = dict.fromkeys(k for line in lines for k in line if "/" in k)
        self._columns = {name: _column(lines, name) for name in names}
        self.minutes = _column(lines, "elapsed_s") / 60
        steps = self._columns.get("counter/env_steps")
        self.counts_steps = steps is not None
        self.x_steps = _column(lines, "iteration") if steps is None else steps / 1e6

    @property
    def x_label(self) -> str:
        """What `x_steps` counts."""
        return "env steps (millions)" if self.counts_steps else "iteration"

    def get(self, name: str) -> Column | None:
        """A metric by name, or None if no line has it."""
        return self._columns.get(name)

    def group(self, prefix: str, suffix: str = "") -> dict[str, Column]:
        """Metrics whose name starts and ends so, keyed by the part between."""
        return {
            name[len(prefix) : len(name) - len(suffix)]: column
            for name, column in self._columns.items()
            if name.startswith(prefix) and name.endswith(suffix)
        }


def learning_curve(metrics_jsonl: Path | str, out_png: Path | str, title: str) -> None:
    """Draw one run: return and episode length, tracking error, reward terms, speed and stages.

    The lower x axis counts env steps, the upper one minutes of training.

    Args:
      metrics_jsonl: the run's metrics.jsonl.
      out_png: picture to write; its directory is made.
      title: above the picture.

    Raises:
      ConfigError: no metrics.
    """
    curves = Curves(metrics_jsonl)
    figure, axes = _figure(2, 2, title)
    _draw_return(axes[0][0], curves)
    _draw_errors(axes[0][1], curves)
    _draw_rewards(axes[1][0], curves)
    _draw_speed(axes[1][1], curves)
    for axis in axes[0]:
        _add_minutes(axis, curves)
    for axis in axes[1]:
        axis.set_xlabel(curves.x_label)
    _save(figure, out_png)


def compare_curves(runs: Sequence[tuple[str, Path | str]], out_png: Path | str) -> None:
    """Draw several runs of one task over each other, with their mean and range.

    Args:
      runs: (label, metrics.jsonl) of each run. Runs with the same label, for example one per seed,
        share a colour and get one mean line and a band from the lowest to the highest.
      out_png: picture to write; its directory is made.

    Raises:
      ConfigError: no run, or a run without metrics.
    """
    if not runs:
        raise ConfigError("no run to compare; give at least one (label, metrics file)")
    groups: dict[str, list[Curves]] = {}
    for label, path in runs:
        groups.setdefault(label, []).append(Curves(path))
    every = [c for members in groups.values() for c in members]
    figure, axes = _figure(2, 2, "")
    rows = (("episode/return", "episode return"), _second_metric(every))
    for row, (name, label) in zip(axes, rows, strict=True):
        for axis, by_time in zip(row, (False, True), strict=True):
            for (group, members), color in zip(groups.items(), _colors(len(groups)), strict=True):
                _draw_band(axis, members, name, by_time, color, group)
            axis.set_ylabel(label)
            axis.set_xlabel("training time (min)" if by_time else every[0].x_label)
    _legend(axes[0][0])
    _save(figure, out_png)


def _second_metric(curves: Sequence[Curves]) -> tuple[str, str]:
    for name in (LEVEL, "metric/lin_vel_error", "metric/ang_vel_error"):
        if any(c.get(name) is not None for c in curves):
            return name, name.partition("/")[2].replace("_", " ")
    return "episode/length_s", "episode length (s)"


def _draw_return(axis: Axes, curves: Curves) -> None:
    axis.set_title("episode return and length")
    _line(axis, curves, curves.get("episode/return"), COLORS[0], "return")
    axis.set_ylabel("return", color=COLORS[0])
    length = curves.get("episode/length_s")
    if length is not None:
        twin = axis.twinx()
        _style(twin)
        twin.grid(visible=False)
        _line(twin, curves, length, COLORS[4], "length")
        twin.set_ylim(bottom=0)
        twin.set_ylabel("length (s)", color=COLORS[4])


def _draw_errors(axis: Axes, curves: Curves) -> None:
    errors = curves.group("metric/")
    axis.set_title("task metrics")
    if not errors:
        axis.set_title("policy noise")
        errors = {k: v for k, v in curves.group("policy/").items() if k in ("std", "kl")}
    for (name, column), color in zip(errors.items(), _colors(len(errors)), strict=True):
        _line(axis, curves, column, color, name.replace("_", " "))
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    level = curves.get(LEVEL)
    if level is not None:
        twin = axis.twinx()
        _style(twin)
        twin.grid(visible=False)
        _line(twin, curves, level, COLORS[4], "terrain level")
        twin.set_ylim(bottom=0)
        twin.set_ylabel("terrain level", color=COLORS[4])
    _legend(axis)


def _draw_rewards(axis: Axes, curves: Curves) -> None:
    axis.set_title("reward terms (per second)")
    rewards = curves.group("reward/")
    axis.axhline(0, color=FAINT, linewidth=1)
    for (name, column), color in zip(rewards.items(), _colors(len(rewards)), strict=True):
        _line(axis, curves, column, color, name)
    _legend(axis, outside=len(rewards) > 6)


def _draw_speed(axis: Axes, curves: Curves) -> None:
    from matplotlib.patches import Patch

    axis.set_title("time of an iteration and speed")
    stages = curves.group("stage/", "_ms")
    if stages:
        x, stack = curves.x_steps, np.nan_to_num(np.stack(list(stages.values())))
        x, *layers = _thin(x, *stack)
        axis.stackplot(
            x, *layers, labels=list(stages), colors=_colors(len(stages)), alpha=0.55, linewidth=0
        )
        axis.set_ylabel("stage (ms)")
        # A first iteration compiles; it must not flatten all others.
        top = float(np.percentile(np.sum(layers, axis=0), 95))
        axis.set_ylim(0, max(1.4 * top, 1e-3))
    speed = curves.get("system/env_steps_per_s")
    if speed is not None:
        twin = axis.twinx()
        _style(twin)
        twin.grid(visible=False)
        _line(twin, curves, speed / 1e3, INK, "")
        twin.set_ylim(bottom=0)
        twin.set_ylabel("env steps/s (thousands)")
        axis = twin  # the legend goes above the line of the twin
    if stages:
        patches = [Patch(color=c, alpha=0.55) for c in _colors(len(stages))]
        axis.legend(
            patches, list(stages), fontsize=8, framealpha=0.85, edgecolor="none", loc="lower right"
        )


def _draw_band(
    axis: Axes, members: list[Curves], name: str, by_time: bool, color: str, label: str
) -> None:
    """One group: its runs as thin lines, and where all have data, mean and range."""
    lines = []
    for curves in members:
        column = curves.get(name)
        if column is None:
            continue
        x = curves.minutes if by_time else curves.x_steps
        known = np.isfinite(column) & np.isfinite(x)
        if known.any():
            lines.append(_thin(x[known], column[known]))
    if not lines:
        return
    alone = len(lines) == 1
    for x, y in lines:
        axis.plot(x, y, color=color, linewidth=1.8 if alone else 0.7, alpha=1.0 if alone else 0.45)
    start, stop = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if alone or stop <= start:
        axis.plot([], [], color=color, label=label)
        return
    grid = np.linspace(start, stop, GRID_POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    axis.fill_between(grid, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)
    axis.plot(grid, values.mean(0), color=color, linewidth=2.0, label=f"{label} ({len(lines)})")


def _column(lines: Sequence[dict[str, Any]], name: str) -> Column:
    values = (line.get(name) for line in lines)
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _thin(x: Column, *columns: Column) -> list[Column]:
    """Average neighbours until at most MAX_POINTS are left. No column may hold nan."""
    count = len(x)
    if count <= MAX_POINTS:
        return [x, *columns]
    starts = np.linspace(0, count, MAX_POINTS, endpoint=False).astype(int)
    sizes = np.diff([*starts, count])
    return [np.add.reduceat(c, starts) / sizes for c in (x, *columns)]


def _line(axis: Axes, curves: Curves, column: Column | None, color: str, label: str) -> None:
    if column is None:
        return
    known = np.isfinite(column) & np.isfinite(curves.x_steps)
    if not known.any():
        return
    x, y = _thin(curves.x_steps[known], column[known])
    marker = "o" if len(x) == 1 else None
    axis.plot(x, y, color=color, linewidth=1.6, label=label, marker=marker)


def _add_minutes(axis: Axes, curves: Curves) -> None:
    known = np.isfinite(curves.minutes) & np.isfinite(curves.x_steps)
    x, minutes = curves.x_steps[known], curves.minutes[known]
    if len(x) < 2 or not (np.all(np.diff(x) > 0) and np.all(np.diff(minutes) > 0)):
        return
    slope = (minutes[-1] - minutes[0]) / (x[-1] - x[0])
    to_minutes = partial(_interpolate, x=x, y=minutes, slope=slope)
    to_steps = partial(_interpolate, x=minutes, y=x, slope=1 / slope)
    upper = axis.secondary_xaxis("top", functions=(to_minutes, to_steps))
    upper.set_xlabel("training time (min)", fontsize=9, color=INK)
    upper.tick_params(labelsize=8, colors=INK)
    upper.spines["top"].set_visible(False)


def _interpolate(value: Any, x: Column, y: Column, slope: float) -> Any:
    """y at `value`, going on with `slope` outside of x."""
    outside = np.minimum(value - x[0], 0) + np.maximum(value - x[-1], 0)
    return np.interp(value, x, y) + slope * outside


def _figure(rows: int, columns: int, title: str) -> tuple[Figure, list[list[Axes]]]:
    # Figure without pyplot: no global state, no window system, safe in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 8.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    axes: list[list[Axes]] = [list(row) for row in grid]
    for row in axes:
        for axis in row:
            _style(axis)
    if title:
        figure.suptitle(title, fontsize=14, fontweight="bold", color=INK)
    return figure, axes


def _style(axis: Axes) -> None:
    axis.grid(visible=True, color=FAINT, linewidth=0.6, alpha=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(FAINT)
    axis.title.set_fontsize(11)
    axis.title.set_color(INK)


def _legend(axis: Axes, outside: bool = False) -> None:
    if not axis.get_legend_handles_labels()[1]:
        return
    if outside:
        axis.legend(
            fontsize=7.5,
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            handlelength=1,
        )
    else:
        axis.legend(fontsize=8, frameon=False, ncols=2, handlelength=1.2)


def _colors(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]


def _save(figure: Figure, out_png: Path | str) -> None:
    out = Path(out_png)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, format="png")
