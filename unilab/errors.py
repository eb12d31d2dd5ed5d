"""Errors of unilab: what the user got wrong, and what went wrong at run time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UnilabError(Exception):
    """Base of every error that unilab raises on purpose."""


class ConfigError(UnilabError):
    """The user's input is at fault.

    The message says where, what came, what is valid and how to fix it. The command line prints it
    without a traceback and exits with code 2.
    """


class PhysicsError(UnilabError):
    """Physics failed at run time.

    Args:
      message: what happened.
      env_ids: the environments concerned, where they are known.
    """

    def __init__(self, message: str, env_ids: Sequence[int] = ()) -> None:
        self.env_ids = tuple(int(i) for i in env_ids)
        where = f" (envs {_shorten(self.env_ids)})" if self.env_ids else ""
        super().__init__(message + where)


class ShardError(UnilabError):
    """A kernel shard raised. Carries the range of environments it was working on."""

    def __init__(self, start: int, stop: int, cause: BaseException) -> None:
        self.start, self.stop = start, stop
        super().__init__(f"kernel shard for envs [{start}, {stop}) failed: {cause!r}")


def nearest(name: str, valid: Iterable[str], count: int = 3) -> str:
    """Return a phrase that helps with a misspelt name.

    Args:
      name: what came.
      valid: the names that would have been accepted.
      count: how many near matches to show at most.

    Returns:
      "did you mean 'a' or 'b'?" where something is near, else "valid: a, b, c".
    """
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "valid: " + (", ".join(names) if names else "none")


def _shorten(ids: Sequence[int], limit: int = 8) -> str:
    shown = ", ".join(str(i) for i in ids[:limit])
    return shown if len(ids) <= limit else f"{shown}, ... {len(ids)} in all"
