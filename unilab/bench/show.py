"""What a benchmark shows on the terminal."""

from __future__ import annotations

import sys


class Show:
    """One line of progress on stderr, written over on a terminal; elsewhere one where it changes.

    How far it is and what follows ", about" (the time left) do not count as a change.
    """

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._last = ""

    def __enter__(self) -> Show:
        return self

    def __call__(self, line: str) -> None:
        if self._in_place:
            sys.stderr.write(f"\r\033[K{line}")
        elif (text := line.partition("%")[2].partition(", about")[0] or line) != self._last:
            sys.stderr.write(f"{line}\n")
            self._last = text
        sys.stderr.flush()

    def __exit__(self, *_error: object) -> None:
        if self._in_place:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def say(text: str) -> None:
    """Print to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
