"""Progress on the screen: a live page on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

LIVE_INTERVAL_S, PLAIN_INTERVAL_S = 0.25, 5.0
# Drawing a page takes milliseconds; it may take this share of the run's time at most.
LIVE_SHARE = 0.004
# Metrics shown in the page's headline, and metrics that say how the learner is doing.
HEADLINE = (
    ("system/env_steps_per_s", "steps/s"),
    ("episode/return", "return"),
    ("episode/length_s", "length (s)"),
    ("curriculum/terrain_level", "terrain level"),
)
LEARNER = ("loss/", "policy/", "learner/")
OTHERS_SKIPPED = (
    "reward/",
    "episode/",
    "curriculum/",
    "counter/env_steps",
    "system/env_steps_per_s",
    *LEARNER,
)


class Snapshot(NamedTuple):
    """What is shown of one iteration."""

    iteration: int
    total_iterations: int
    elapsed_s: float
    eta_s: float | None
    metrics: Mapping[str, float]
    times: Mapping[str, float]  # ms


class View(Protocol):
    """A way of showing progress."""

    def update(self, snapshot: Snapshot) -> None:
        """Show an iteration, or skip it if the last one shown is recent."""

    def close(self) -> None:
        """Show the last iteration and leave the screen in order."""


def open_view(console: Console, title: str) -> View:
    """The live page on a terminal that can move its cursor, else plain lines."""
    isatty = getattr(console.file, "isatty", None)
    if isatty is not None and isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title)
    return PlainView(console)


class PlainView:
    """One or two lines every few seconds, without colours or cursor movements."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._due = 0.0
        self._pending: Snapshot | None = None
        self._open = True

    def update(self, snapshot: Snapshot) -> None:
        self._pending = snapshot
        if time.perf_counter() >= self._due:
            self._show()
            self._due = time.perf_counter() + PLAIN_INTERVAL_S

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._pending is None or not self._open:
            return
        text = "\n".join(plain_lines(self._pending)) + "\n"
        self._pending = None
        try:
            self._file.write(text)
            self._file.flush()
        except BrokenPipeError:
            # Whoever read the output has gone. The run's files say it all: a training of hours does
            # not end for this, and neither does whatever is still to be printed.
            self._open = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)


class LiveView:
    """A page that is redrawn in place. Draws from `update` only: no thread of its own."""

    def __init__(self, console: Console, title: str) -> None:
        self._title, self._console = title, console
        self._due = 0.0
        self._pending: Snapshot | None = None
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        self._pending = snapshot
        start = time.perf_counter()
        if start >= self._due:
            self._show()
            stop = time.perf_counter()
            self._due = stop + max(LIVE_INTERVAL_S, (stop - start) / LIVE_SHARE)

    def close(self) -> None:
        self._show()
        self._live.stop()

    def _show(self) -> None:
        if self._pending is not None:
            self._live.update(page(self._title, self._pending, self._console.width), refresh=True)
            self._pending = None


def plain_lines(snapshot: Snapshot) -> list[str]:
    """The two lines of an iteration: how the run goes, and each reward term and stage."""
    done = snapshot.iteration / max(1, snapshot.total_iterations)
    head = (
        f"[{snapshot.iteration}/{snapshot.total_iterations} {done:4.0%}] "
        f"{duration(snapshot.elapsed_s)} elapsed, ETA {duration(snapshot.eta_s)}"
    )
    values = snapshot.metrics
    parts = [f"{label} {number(values[key])}" for key, label in HEADLINE if key in values]
    parts += [f"{k} {number(v)}" for k, v in _whole(values, LEARNER[1:])]
    lines = [" | ".join([head, ", ".join(parts)]) if parts else head]
    rewards = [f"{k} {number(v)}" for k, v in _group(values, ("reward/",))]
    stages = [f"{k} {number(v)}" for k, v in _group(snapshot.times, ("stage/",))]
    details = [
        f"{name}: {', '.join(items)}"
        for name, items in (("rewards", rewards), ("stages (ms)", stages))
        if items
    ]
    return [*lines, "    " + " | ".join(details)] if details else lines


def page(title: str, snapshot: Snapshot, width: int) -> Text:
    """The live page, `width` characters wide: bar, headline, columns of terms and times.

    One plain text: rich's tables and bars take seven times as long to draw.
    """
    values = snapshot.metrics
    clock = f"{duration(snapshot.elapsed_s)} elapsed  ETA {duration(snapshot.eta_s)}"
    count = f"{snapshot.iteration}/{snapshot.total_iterations}"
    room = max(10, width - len(title) - len(count) - len(clock) - 6)
    done = round(room * min(1.0, snapshot.iteration / max(1, snapshot.total_iterations)))
    text = Text(no_wrap=True, overflow="crop")
    text.append(f"{title} ", "bold")
    text.append("━" * done, "green").append("━" * (room - done), "bright_black")
    text.append(f" {count}  {clock}\n", "cyan")
    steps = values.get("counter/env_steps")
    head = [] if steps is None else [f"env steps {number(steps)}"]
    head += [f"{label} {number(values[key])}" for key, label in HEADLINE if key in values]
    text.append("   ".join(head) + "\n", "green")
    columns = (
        ("reward", _group(values, ("reward/",))),
        ("learner", _whole(values, LEARNER)),
        ("stage, ms", _group(snapshot.times, ("stage/",))),
        ("busy, ms", _group(snapshot.times, ("busy/",))),
        ("other", [(k, v) for k, v in values.items() if not k.startswith(OTHERS_SKIPPED)]),
    )
    lines = _side_by_side([(name, rows) for name, rows in columns if rows])
    text.append(f"{lines[0]}\n", "bold")
    text.append("\n".join(lines[1:]))
    return text


def _side_by_side(columns: list[tuple[str, list[tuple[str, float]]]]) -> list[str]:
    """Lines of text: the columns' titles, then their rows."""
    blocks = []
    for title, rows in columns:
        width = max(len(title), *(len(name) for name, _ in rows))
        cells = [f"{title:<{width + 9}}"]
        blocks.append(cells + [f"{name:<{width}} {number(value):>8}" for name, value in rows])
    height = max((len(block) for block in blocks), default=1)
    for block in blocks:
        block.extend([" " * len(block[0])] * (height - len(block)))
    return ["   ".join(block[i] for block in blocks) for i in range(height)]


def _whole(values: Mapping[str, float], prefixes: tuple[str, ...]) -> list[tuple[str, float]]:
    return [(key, value) for key, value in values.items() if key.startswith(prefixes)]


def _group(values: Mapping[str, float], prefixes: tuple[str, ...]) -> list[tuple[str, float]]:
    return [
        (key.split("/", 1)[1].removesuffix("_ms"), value)
        for key, value in values.items()
        if key.startswith(prefixes)
    ]


def number(value: float) -> str:
    """A number in at most 8 characters: 24.3k, 0.0103, 3.1e-04, nan."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]:.4g}{unit}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 1e-3 or value == 0:
        return f"{value:.3g}"
    return f"{value:.1e}"


def duration(seconds: float | None) -> str:
    """A time as 0:42, 12:05 or 3:07:09; "?" where it is not known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"
