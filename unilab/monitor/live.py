"""The screen while a run is watched: a page drawn in place on a terminal, lines anywhere else."""

from __future__ import annotations

import os
import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_INTERVAL_S = 10.0


class View(Protocol):
    """A way of showing what is seen."""

    def show(self, lines: list[str], short: str) -> None:
        """Show the page, or its short form of one line."""

    def close(self) -> None:
        """Leave the screen in order."""


def open_view(console: Console) -> View:
    """The live page on a terminal that can move its cursor, else a line now and then."""
    isatty = getattr(console.file, "isatty", None)
    if isatty is not None and isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console)
    return PlainView(console)


class LiveView:
    """A page that is redrawn in place. Draws from `show` only: no thread of its own."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, lines: list[str], short: str) -> None:
        del short
        text = Text("\n".join(lines), no_wrap=True, overflow="crop")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """One line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._due_s = 0.0

    def show(self, lines: list[str], short: str) -> None:
        del lines
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + PLAIN_INTERVAL_S
        write(self._file, short + "\n")

    def close(self) -> None:
        pass


def write(file: object, text: str) -> None:
    """Write to a stream; where its reader has gone, to nowhere from then on."""
    try:
        file.write(text)  # type: ignore[attr-defined]
        file.flush()  # type: ignore[attr-defined]
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())  # type: ignore[attr-defined]
        os.close(nowhere)
