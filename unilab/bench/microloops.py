"""Loops that do one thing each of what the step kernel does, to say where its time goes.

The parts overlap in the real kernel: a processor waits for memory while it multiplies. So the
shares are estimates, and what is left over is the rest: arithmetic, branches, statistics.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from unilab.bench.traffic import count_calls
from unilab.tasks.base import BuiltTask
from unilab_kernels.rng import GOLDEN, MIX_A, MIX_B, SHIFT_16, SHIFT_27, SHIFT_30, SHIFT_31

TRANSCENDENTAL = ("exp", "sin", "cos")
# As the generated kernels are compiled.
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
_LOW_24, _SHIFT_40, _GRID = np.uint64(0xFFFFFF), np.uint64(40), np.float32(2.0**-24)


@njit(**_OPTIONS)
def gather(rows, columns, scratch):
    """Read columns of f64 rows (N, T, S), the last of the T, and convert them to f32."""
    last = rows.shape[1] - 1
    for i in range(rows.shape[0]):
        for j in range(len(columns)):
            scratch[j] = np.float32(rows[i, last, columns[j]])
    return scratch[0]


@njit(**_OPTIONS)
def store(obs, critic_obs, push):
    """Write what a step writes most of: observations (N, O), (N, C) f32, pushes (N, nv) f64."""
    for i in range(obs.shape[0]):
        x = np.float32(i)
        for j in range(obs.shape[1]):
            obs[i, j] = x
        for j in range(critic_obs.shape[1]):
            critic_obs[i, j] = x
        for j in range(push.shape[1]):
            push[i, j] = 0.0
    return obs[0, 0]


@njit(**_OPTIONS)
def draw(out, folds, seed):
    """Draw uniform noise for rows (N, W): per row some folds, and 64 bits for two numbers."""
    pairs = out.shape[1] // 2
    for i in range(out.shape[0]):
        key = seed + np.uint64(i)
        for _ in range(folds):
            key = (key ^ (key >> SHIFT_30)) * MIX_A
            key = (key ^ (key >> SHIFT_27)) * MIX_B
            key = (key ^ (key >> SHIFT_31)) + GOLDEN
        for j in range(pairs):
            bits = key + GOLDEN * np.uint64(j + 1)
            bits = (bits ^ (bits >> SHIFT_30)) * MIX_A
            bits = (bits ^ (bits >> SHIFT_27)) * MIX_B
            bits = bits ^ (bits >> SHIFT_31)
            out[i, 2 * j] = np.float32(np.int32(bits >> _SHIFT_40)) * _GRID
            out[i, 2 * j + 1] = np.float32(np.int32((bits >> SHIFT_16) & _LOW_24)) * _GRID
    return out[0, 0]


@njit(**_OPTIONS)
def functions(values, exps, sines, cosines):
    """Call exp, sin and cos so many times for each value (N,) f32, each on another argument."""
    total = np.float32(0.0)
    for i in range(len(values)):
        x = values[i]
        for j in range(exps):
            total += math.exp(-x * np.float32(j + 1))
        for j in range(sines):
            total += math.sin(x * np.float32(j + 1))
        for j in range(cosines):
            total += math.cos(x * np.float32(j + 1))
    return total


def time_parts(
    built: BuiltTask, state: NDArray[np.float64], sensors: NDArray[np.float64], repeats: int = 7
) -> dict[str, float]:
    """Return ms on one thread for a whole batch, part by part.

    Args:
      built: the task.
      state, sensors: (N, T, ...) the kernel's inputs.
      repeats: the median counts.
    """
    num_envs, calls = len(state), count_calls(built.kernel, TRANSCENDENTAL)
    noisy = [part for part in built.kernel.actor_layout if part.noise]
    noisy += [part for part in built.kernel.critic_layout if part.noise]
    width = 2 * sum(-(-(part.stop - part.start) // 2) for part in noisy)
    folds = 3 + len(noisy)  # env, episode, step, and the stream of each term
    fields = built.model.fields.values()
    parts: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {"gather": []}
    for source, rows in (("state", state), ("sensor", sensors)):
        columns = sorted({c for f in fields if f.source == source for c in f.columns})
        if columns:
            scratch = np.zeros(len(columns), np.float32)
            parts["gather"].append((gather, (rows, np.array(columns), scratch)))
    sizes = (built.kernel.num_obs, built.kernel.num_critic_obs)
    written = [np.zeros((num_envs, size), np.float32) for size in sizes]
    push = np.zeros((num_envs, int(built.robot.model.nv)))
    parts["store"] = [(store, (*written, push))]
    out = np.zeros((num_envs, max(width, 2)), np.float32)
    parts["random numbers"] = [(draw, (out, folds, np.uint64(1)))] if width else []
    values = np.linspace(0.0, 1.0, num_envs, dtype=np.float32)
    counts = tuple(calls[name] for name in TRANSCENDENTAL)
    parts["exp, sin, cos"] = [(functions, (values, *counts))]
    return {
        name: sum(_median_ms(function, arguments, repeats) for function, arguments in loops)
        for name, loops in parts.items()
    }


def _median_ms(function: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> float:
    function(*arguments)  # compiled
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        function(*arguments)
        times.append(perf_counter() - begin)
    return 1e3 * float(np.median(times))


@njit(**_OPTIONS)
def spin(first, last, rounds, out):
    """Pure arithmetic for each block: no memory but one number at the end."""
    for block in range(first, last):
        x = np.uint64(block + 1)
        for _ in range(rounds):
            x = (x ^ (x >> SHIFT_30)) * MIX_A + GOLDEN
        out[block] = x


class ArithmeticLoop:
    """A kernel of `Shards` that only calculates, as long as asked for.

    Args:
      num_blocks: of the batch.
    """

    def __init__(self, num_blocks: int) -> None:
        self.out = np.zeros(num_blocks, np.uint64)
        self.rounds = 1
        spin(0, 1, 1, self.out)

    def __call__(self, first: int, last: int, num_envs: int, *arrays: Any) -> None:  # noqa: ARG002
        """Calculate for some blocks."""
        spin(first, last, self.rounds, self.out)

    def set_length(self, wanted_ms: float) -> None:
        """Choose the number of rounds, so that all blocks on one thread take this long."""
        blocks = len(self.out)
        self.rounds = 1000
        for _ in range(3):
            took = min(_timed_ms(self, blocks) for _ in range(3))
            self.rounds = max(1, round(self.rounds * wanted_ms / max(took, 1e-3)))


def _timed_ms(loop: ArithmeticLoop, blocks: int) -> float:
    begin = perf_counter()
    loop(0, blocks, 0)
    return 1e3 * (perf_counter() - begin)
