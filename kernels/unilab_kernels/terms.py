"""Decorators that turn a plain function into a term, and the registry that finds it by name.

A term says by its **argument names** what it reads:

=============  ====================================================================================
argument       what the term gets
=============  ====================================================================================
``<field>``    this environment's value of a field: a scalar, or a row of shape (size,)
``<field>_io`` the row of a carried field, which the term may write (shape (1,) for a scalar field)
``out``        the row that a vector result goes to (observations, derived fields, resets)
``key``        a 64-bit random key of this environment, episode, step and term (see ``rng.py``)
``<constant>`` a value that the task declared from the model: scalar, or an array of shape (size,)
any other      a parameter, set in the config; a default in the signature makes it optional
=============  ====================================================================================

A term is scalar code for one environment. It allocates nothing and reads no other environment. It
may call functions and use numbers of its file; arrays are declared as constants of the task.
Float literals become float32 when the term is fused; write ``2.0 * x`` and ``x * x`` rather than
``2 * x`` and ``x ** 2``, which Numba would promote to float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STAGES = (
    "derived",
    "termination",
    "reward",
    "carry",
    "command",
    "observation",
    "reset",
    "interval",
)


class TermError(ValueError):
    """A term is named, declared or configured wrongly; the message says what is valid."""


@dataclass(frozen=True)
class Term:
    """One registered term.

    Attributes:
      name: the name in the config.
      stage: one of `STAGES`.
      function: the Python function.
      size: length of ``out``: a number, or the name of the argument whose length it has. 0 for a
        term that returns a scalar.
      truncates: a termination that cuts the episode as its time limit does.
    """

    name: str
    stage: str
    function: Callable[..., Any]
    size: int | str = 0
    truncates: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """Argument names in order."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def defaults(self) -> dict[str, float]:
        """Parameters that have a default in the signature."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]


_REGISTRY: dict[tuple[str, str], Term] = {}


def _register(
    stage: str, function: Callable[..., Any], size: int | str, *, truncates: bool = False
) -> Callable[..., Any]:
    name = function.__name__
    known = _REGISTRY.get((stage, name))
    if known is not None and not _is_same_place(known.function, function):
        raise TermError(
            f"{stage} term '{name}' is defined twice: {_place(known.function)} and "
            f"{_place(function)}; rename one"
        )
    takes_out = "out" in inspect.signature(function).parameters
    if takes_out != (size != 0):
        raise TermError(f"{stage} term '{name}': an argument 'out' and a size go together")
    _REGISTRY[(stage, name)] = Term(name, stage, function, size, truncates)
    return function


def _is_same_place(known: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Say whether `new` replaces `known`: the same file, imported once more."""
    same_file = known.__code__.co_filename == new.__code__.co_filename
    same_line = known.__code__.co_firstlineno == new.__code__.co_firstlineno
    return same_file and (same_line or known.__globals__ is not new.__globals__)


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a reward term: returns a float, multiplied by its ``weight`` and the control dt."""
    return _register("reward", function, 0)


def termination(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a termination term: returns True where the episode ends as a failure."""
    return _register("termination", function, 0)


def truncation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a termination term: returns True where the episode is cut, as by its time limit."""
    return _register("termination", function, 0, truncates=True)


def carry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a term that updates carried fields (``*_io``) once a step, after the rewards."""
    return _register("carry", function, 0)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a command term: runs every step and at each reset (then ``fresh`` is True)."""
    return _register("command", function, 0)


def interval(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an interval event: returns True where it has added to ``push_out`` (nv,), else False.

    What a term adds and does not own up to is not applied, and may be added to its next push.
    """
    return _register("interval", function, 0)


def reset(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a reset event: changes ``qpos_io`` (nq,) and ``qvel_io`` (nv,) f64 of a new episode.

    It sees carried fields as the old episode left them and may write those that are kept across
    episodes; ``env_id`` counts envs from 0, and ``episode`` this env's episodes from 1.
    """
    return _register("reset", function, 0)


def observation(size: int | str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark an observation term that fills ``out`` of the given size."""
    return lambda function: _register("observation", function, size)


def derived(size: int | str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a derived field: computed once a step where some term reads it. 0: returns a scalar."""
    return lambda function: _register("derived", function, size)


def find(stage: str, name: str) -> Term | None:
    """Return the registered term, or None."""
    return _REGISTRY.get((stage, name))


def names(stage: str) -> list[str]:
    """Names of all registered terms of a stage."""
    return sorted(name for s, name in _REGISTRY if s == stage)
