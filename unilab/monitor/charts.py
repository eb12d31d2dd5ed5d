"""The pictures of a report: stages, costs, cores, waits, memory and the GPU over the watch."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from unilab.monitor.csv_file import POOLS, STAGES
from unilab.monitor.recording import Recording, Sample
from unilab.monitor.threads import OTHER, UNNAMED
from unilab.monitor.verdict import Verdict
from unilab.plots import COLORS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]
DPI = 110
# Colours of the verdict's bars: what the main line waits for, what a resource works.
EXPOSED, BUSY, SAVED = COLORS[0], FAINT, COLORS[1]
STAGE_COLORS = {name: COLORS[i % len(COLORS)] for i, name in enumerate(STAGES)}
# A pool has the colour of the stage that it works for.
POOL_STAGES = {
    "physics pool": "physics",
    "kernel shards": "kernel",
    "kernel pool": "kernel",
    UNNAMED: "learn",
    "torch": "policy",
    "cuda": "transfer",
    "physics caller": "log",
    OTHER: "buffer",
}


def draw_report(recording: Recording, verdict: Verdict, title: str) -> bytes:
    """Return the picture as a PNG; panels of what was not seen are left out.

    Args:
      recording: what was seen.
      verdict: on it.
      title: above the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(recording, verdict)
    rows = (len(panels) + 1) // 2
    height = 0.7 + 3.3 * rows
    figure = Figure(figsize=(13.0, height), facecolor="white")
    FigureCanvasAgg(figure)
    # A layout that measures every label takes as long as the drawing.
    figure.subplots_adjust(
        left=0.065, right=0.945, bottom=0.55 / height, top=1 - 0.85 / height, wspace=0.24,
        hspace=0.36,
    )  # fmt: skip
    axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axis, draw in zip(axes, panels, strict=False):
        _style(axis)
        draw(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, format="png")
    return content.getvalue()


def save_picture(content: bytes, path: Path) -> None:
    """Write a picture."""
    path.write_bytes(content)


def _panels(recording: Recording, verdict: Verdict) -> list[Draw]:
    samples = recording.samples.items
    cpu = [sample for sample in samples if sample.cpu is not None]
    gpu = [sample for sample in samples if sample.gpu is not None]
    panels: list[Draw] = []
    if recording.rows.items:
        panels += [partial(_stages, recording), partial(_costs, recording, verdict)]
    if cpu:
        panels += [partial(_cores, cpu), partial(_waits, cpu)]
    if recording.rows.items:
        panels.append(partial(_speed, recording))
    if cpu:
        panels.append(partial(_memory, cpu))
    if gpu:
        panels += [partial(_gpu_use, gpu), partial(_gpu_power, gpu)]
    return panels or [_nothing]


def _nothing(axis: Axes) -> None:
    axis.text(0.5, 0.5, "nothing was seen", ha="center", va="center", color=INK)
    axis.set_axis_off()


def _stages(recording: Recording, axis: Axes) -> None:
    rows = recording.rows.items
    names = [name for name in STAGES if any(row.exposed_ms.get(name) for row in rows)]
    x = [row.elapsed_s for row in rows]
    layers = [[row.exposed_ms.get(name, 0.0) / row.iterations for row in rows] for name in names]
    if len(rows) == 1:
        x, layers = [x[0] - 0.5, x[0] + 0.5], [layer * 2 for layer in layers]
    colors = [STAGE_COLORS[name] for name in names]
    axis.stackplot(x, *layers, labels=names, colors=colors, alpha=0.75, linewidth=0)
    sums = sorted(sum(column) for column in zip(*layers, strict=True))
    top = sums[min(len(sums) - 1, int(0.95 * len(sums)))]  # a first iteration must not flatten all
    axis.set_ylim(0, max(1.6 * top, 1e-3))
    axis.set_title("exposed time an iteration")
    axis.set_ylabel("ms")
    axis.set_xlabel("training time (s)")
    axis.legend(fontsize=7, ncols=2, loc="upper right", framealpha=0.9, edgecolor="none")


def _costs(recording: Recording, verdict: Verdict, axis: Axes) -> None:
    costs = sorted(verdict.costs.items(), key=lambda item: item[1].exposed_ms)
    names = [name for name, _ in costs]
    places = list(range(len(names)))
    busy = recording.measured().totals.per_iteration().busy_ms
    merged = {**busy, "kernel": busy.get("kernel", 0.0) + busy.get("reset", 0.0)}
    axis.barh(places, [merged.get(n, 0.0) for n in names], 0.75, color=BUSY, label="busy")
    axis.barh(places, [c.exposed_ms for _, c in costs], 0.5, color=EXPOSED, label="exposed")
    axis.barh(
        places, [c.saved_ms for _, c in costs], 0.16, color=SAVED, label="saved if it cost nothing"
    )
    for place, (_, cost) in zip(places, costs, strict=True):
        if cost.speedup >= 1.01:
            end = max(cost.exposed_ms, cost.saved_ms)
            axis.annotate(
                f"{cost.speedup:.2f} x if free", (end, place), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=8, color=INK,
            )  # fmt: skip
    axis.set_yticks(places, names)
    axis.margins(x=0.18)
    axis.set_title("what an iteration is spent on")
    axis.set_xlabel("ms an iteration")
    axis.legend(fontsize=7, loc="lower right", framealpha=0.9, edgecolor="none")


def _cores(samples: list[Sample], axis: Axes) -> None:
    uses = [sample.cpu for sample in samples if sample.cpu is not None]
    x = [sample.elapsed_s for sample in samples]
    names = [role for role in POOLS if any(role in use.pools for use in uses)]
    layers = [[u.pools[n].cores if n in u.pools else 0.0 for u in uses] for n in names]
    layers.append([use.other_cores + use.stolen_cores for use in uses])
    if len(x) == 1:
        x, layers = [x[0] - 0.5, x[0] + 0.5], [layer * 2 for layer in layers]
    own = [STAGE_COLORS[POOL_STAGES[n]] if n in POOL_STAGES else INK for n in names]
    colors = [*own, FAINT]
    labels = [*names, "other processes"]
    axis.stackplot(x, *layers, labels=labels, colors=colors, alpha=0.75, linewidth=0)
    axis.axhline(uses[-1].available, color=INK, linewidth=1, linestyle="--")
    axis.set_ylim(0, 1.45 * uses[-1].available)
    axis.set_title("cores in use, by thread pool")
    axis.set_ylabel("cores")
    axis.set_xlabel("watched (s)")
    axis.legend(fontsize=7, ncols=3, loc="upper right", framealpha=0.9, edgecolor="none")


def _waits(samples: list[Sample], axis: Axes) -> None:
    x = [sample.elapsed_s for sample in samples]
    uses = [sample.cpu for sample in samples if sample.cpu is not None]
    marker = "o" if len(x) == 1 else None
    forced = [use.forced_per_s for use in uses]
    voluntary = [use.voluntary_per_s for use in uses]
    axis.plot(x, voluntary, color=COLORS[0], label="voluntary", marker=marker)
    axis.plot(x, forced, color=COLORS[1], label="forced", marker=marker)
    axis.set_ylim(0, 1.35 * max(*forced, *voluntary, 1.0))  # room for the legend
    axis.set_ylabel("context switches/s")
    axis.set_xlabel("watched (s)")
    axis.set_title("context switches, and waiting for a core")
    waits = [use.wait_share for use in uses]
    if any(wait is not None for wait in waits):
        twin = axis.twinx()
        _style(twin)
        twin.grid(visible=False)
        known = [float("nan") if wait is None else 100 * wait for wait in waits]
        twin.plot(x, known, color=COLORS[4], linewidth=2, marker=marker)
        axis.plot([], [], color=COLORS[4], linewidth=2, label="waiting (right)")
        twin.set_ylim(0, 100)
        twin.set_ylabel("% of the time a core was wanted")
    axis.legend(fontsize=7, loc="upper right", framealpha=0.9, edgecolor="none")


def _speed(recording: Recording, axis: Axes) -> None:
    rows = [row for row in recording.rows.items if row.env_steps is not None]
    pairs = [
        (b.elapsed_s, ((b.env_steps or 0.0) - (a.env_steps or 0.0)) / (b.elapsed_s - a.elapsed_s))
        for a, b in pairwise(rows)
        if b.elapsed_s > a.elapsed_s
    ]
    marker = "o" if len(pairs) == 1 else None
    x, y = [p[0] for p in pairs], [p[1] / 1e3 for p in pairs]
    axis.plot(x, y, color=COLORS[2], linewidth=0.8, marker=marker, label="each logged row")
    mean = recording.env_steps_per_s
    if mean is not None:
        axis.axhline(mean / 1e3, color=INK, linewidth=1, linestyle="--", label="mean")
    axis.set_ylim(0, 1.2 * max([*y, 1e-3]))
    axis.set_title("speed")
    axis.set_ylabel("env-steps/s (thousands)")
    axis.set_xlabel("training time (s)")
    axis.legend(fontsize=7, loc="lower right", framealpha=0.9, edgecolor="none")


def _memory(samples: list[Sample], axis: Axes) -> None:
    x = [sample.elapsed_s for sample in samples]
    y = [sample.cpu.rss_bytes / 2**20 for sample in samples if sample.cpu is not None]
    axis.plot(x, y, color=COLORS[3], marker="o" if len(x) == 1 else None)
    axis.set_ylim(0, 1.2 * max(y))
    axis.set_title("resident memory")
    axis.set_ylabel("MiB")
    axis.set_xlabel("watched (s)")


def _gpu_use(samples: list[Sample], axis: Axes) -> None:
    for name, label, color in (
        ("busy_fraction", "busy (any kernel)", FAINT),
        ("sm_active_fraction", "SM active", COLORS[0]),
        ("sm_occupancy_fraction", "occupancy", COLORS[5]),
        ("tensor_fraction", "tensor cores", COLORS[3]),
        ("dram_fraction", "memory bandwidth", COLORS[4]),
    ):
        _gpu_line(samples, axis, name, label, color, 100.0)
    axis.set_ylim(0, 105)
    axis.set_title("GPU: busy is not well used")
    axis.set_ylabel("%")
    axis.legend(fontsize=7, ncols=2, framealpha=0.9, edgecolor="none")


def _gpu_power(samples: list[Sample], axis: Axes) -> None:
    _gpu_line(samples, axis, "power_w", "power (W)", COLORS[1], 1.0)
    _gpu_line(samples, axis, "power_limit_w", "power limit (W)", FAINT, 1.0)
    _gpu_line(samples, axis, "to_device_mb_s", "host to device (MB/s)", COLORS[0], 1.0)
    _gpu_line(samples, axis, "to_host_mb_s", "device to host (MB/s)", COLORS[2], 1.0)
    axis.set_ylim(bottom=0)
    axis.set_title("GPU: power and PCIe")
    axis.legend(fontsize=7, ncols=2, framealpha=0.9, edgecolor="none")


def _gpu_line(
    samples: list[Sample], axis: Axes, name: str, label: str, color: str, scale: float
) -> None:
    values = [(s.elapsed_s, getattr(s.gpu, name)) for s in samples]
    known = [(x, scale * y) for x, y in values if y is not None]
    if known:
        axis.plot(*zip(*known, strict=True), color=color, label=label)
    axis.set_xlabel("watched (s)")


def _style(axis: Axes) -> None:
    axis.grid(visible=True, color=FAINT, linewidth=0.6, alpha=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.title.set_fontsize(10)
    axis.title.set_color(INK)
    axis.xaxis.label.set_fontsize(8)
    axis.yaxis.label.set_fontsize(8)
