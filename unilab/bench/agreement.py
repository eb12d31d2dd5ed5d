"""The NumPy baseline and the fused kernel give the same results; else neither is worth timing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unilab.bench.draws import Draws, FastDraws, KernelDraws
from unilab.bench.numpy_step import with_numpy
from unilab.bench.recording import Recording
from unilab.bench.replay import HostStep, ReplayPhysics
from unilab.errors import UnilabError
from unilab.runtime.threads import ThreadPlan
from unilab.tasks.base import BuiltTask
from unilab_kernels.arrays import ARRAYS

TOLERANCE = 1e-4  # relative and absolute: float32, sums in another order
# A number just at a threshold may fall on the other side of it: so many envs in a step may differ.
STRAY_ENVS = 5e-4
_OUTPUTS = tuple(name for name in ARRAYS if name.endswith(("_io", "_out")) and name != "scratch_io")


@dataclass(frozen=True)
class Agreement:
    """How far two forms of the host step agree.

    Attributes:
      steps: compared, each from equal inputs.
      arrays: names of what was compared.
      largest_difference: |a - b| / (1 + |b|), where an env is not a stray.
      stray_envs: envs that a rounding put on the other side of a threshold.
      done, pushed: episodes that ended and envs pushed in these steps.
    """

    steps: int
    arrays: tuple[str, ...]
    largest_difference: float
    stray_envs: int
    done: int
    pushed: int


def compare(built: BuiltTask, recording: Recording, plan: ThreadPlan, steps: int = 2) -> Agreement:
    """Run kernel and NumPy on the same recorded steps with the same random numbers.

    Raises:
      UnilabError: a result differs.
      NoTwinError: there is no NumPy form of the task.
    """
    physics = [ReplayPhysics(recording, built) for _ in range(2)]
    kernel = HostStep(built, physics[0], plan)
    draws = KernelDraws(kernel.pipeline.arrays["seed_in"])
    numpy = HostStep(with_numpy(built, draws), physics[1], plan)
    worst, strays, done, pushed = 0.0, 0, 0, 0
    for _ in range(min(steps, recording.num_steps)):
        for name in _OUTPUTS:
            numpy.pipeline.arrays[name][:] = kernel.pipeline.arrays[name]
        numpy.physics.restore(kernel.physics.snapshot())
        numpy.physics.step = kernel.physics.step
        kernel.step()
        numpy.step()
        ours, theirs = kernel.pipeline.arrays, numpy.pipeline.arrays
        stray = np.zeros(recording.num_envs, np.bool_)
        for name in _OUTPUTS:
            if name != "log_io":
                error = _error(ours[name], theirs[name])
                stray |= error > TOLERANCE
                worst = max(worst, float(error[error <= TOLERANCE].max(initial=0.0)))
        if int(stray.sum()) > int(STRAY_ENVS * recording.num_envs):
            raise UnilabError(_report(ours, theirs, stray))
        strays += int(stray.sum())
        if not stray.any() and (_error(ours["log_io"], theirs["log_io"]) > TOLERANCE).any():
            raise UnilabError("NumPy baseline and kernel differ in their statistics (log_io)")
        done += int((ours["terminated_out"] | ours["truncated_out"]).sum())
        pushed += int(ours["pushed_out"].sum())
    kernel.close()
    numpy.close()
    names = tuple(name.rsplit("_", 1)[0] for name in _OUTPUTS)
    return Agreement(min(steps, recording.num_steps), names, worst, strays, done, pushed)


def check_noise(draws: Draws | None = None, count: int = 2**18) -> None:
    """Check that the timed noise is uniform: bounds, mean, variance, and 32 equal shares.

    Raises:
      UnilabError: it is not.
    """
    draws = FastDraws(0) if draws is None else draws
    numbers = np.empty((count // 64, 64), np.float32)
    draws.noise(slice(0, len(numbers)), (("noise/test", 64),), numbers)
    values = numbers.astype(np.float64).ravel() * draws.unit
    shares = np.histogram(values, bins=32, range=(-1.0, 1.0))[0] / values.size
    off = {
        "bounds": max(abs(values.min()), abs(values.max())) > 1.0,
        "mean": abs(values.mean()) > 6.0 * np.sqrt(1.0 / 3.0 / values.size),
        "variance": abs(values.var() - 1.0 / 3.0) > 6.0 * np.sqrt(4.0 / 45.0 / values.size),
        "shares": np.abs(shares * 32.0 - 1.0).max() > 6.0 * np.sqrt(32.0 / values.size),
    }
    wrong = [name for name, is_off in off.items() if is_off]
    if wrong:
        raise UnilabError(f"the NumPy baseline's noise is not uniform in [-1, 1]: {wrong}")


def _error(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float64]:
    """Largest |a - b| / (1 + |b|) of each row; two NaN are equal."""
    x = np.asarray(a, np.float64).reshape(len(a), -1)
    y = np.asarray(b, np.float64).reshape(len(b), -1)
    with np.errstate(invalid="ignore"):
        error = np.abs(x - y) / (1.0 + np.abs(y))
    error[np.isnan(x) & np.isnan(y)] = 0.0
    error[np.isnan(x) != np.isnan(y)] = np.inf
    rows: NDArray[np.float64] = error.max(axis=1, initial=0.0)
    return rows


def _report(ours: dict[str, object], theirs: dict[str, object], stray: NDArray[np.bool_]) -> str:
    """Say where results differ."""
    lines = [f"NumPy baseline and kernel differ in {int(stray.sum())} of {len(stray)} envs:"]
    for name in _OUTPUTS:
        a, b = np.asarray(ours[name]), np.asarray(theirs[name])
        if name == "log_io" or not (error := _error(a, b)).max(initial=0.0) > TOLERANCE:
            continue
        env = int(error.argmax())
        column = int(_error(np.atleast_1d(a[env]), np.atleast_1d(b[env])).argmax())
        values = [float(np.atleast_1d(x[env]).ravel()[column]) for x in (a, b)]
        lines.append(f"  {name}: env {env}, column {column}: kernel {values[0]}, NumPy {values[1]}")
    return "\n".join(lines)
