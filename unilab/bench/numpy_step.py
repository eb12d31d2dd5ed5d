"""The NumPy baseline: the four kernels of a task in NumPy, with the kernels' own signature.

So `Shards` and `Pipeline` run it in place of the fused kernel. Vectorised, preallocated, in place,
float32 like the kernel; what is wide is done part by part, so that it stays in cache; what happens
to few envs (draws, ends of episodes) is done for those alone. ufuncs of more than 500 numbers
release the GIL, so shards run side by side.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench import numpy_events as _events  # noqa: F401  (registers its twins)
from unilab.bench import numpy_terms as _terms  # noqa: F401  (likewise)
from unilab.bench.draws import Draws, FastDraws
from unilab.bench.numpy_checks import Checks, all_finite, finite_rows
from unilab.bench.numpy_chunk import I64, Arrays, Chunk, Layout, Mask
from unilab.bench.numpy_derived import TWINS, WIDE
from unilab.bench.numpy_log import StepLog
from unilab.bench.numpy_observations import ObservePlan
from unilab.config.randomization import ModelEntry
from unilab.errors import ConfigError
from unilab.tasks.base import BuiltTask
from unilab_kernels import terms as library
from unilab_kernels.arrays import ARRAYS, FusedKernel
from unilab_kernels.spec import BAD_ACTION, BAD_TERM, BLOCK

# Envs worked on at a time: small vectors over BATCH (their buffers are some 100 kB each), joint
# vectors over PART of it (2 MB of second-level cache a core).
BATCH = 128 * BLOCK
PART = 16 * BLOCK

_PER_ENV = tuple(name for name, (shape, _, _) in ARRAYS.items() if shape.startswith("(N"))
_OBSERVED = ("state_in", "sensor_in", "fields_io", "obs_out", "critic_obs_out")
Term = Callable[..., Any]


class NoTwinError(ConfigError):
    """A term of the task has no NumPy form, so there is no baseline."""


@dataclass(frozen=True)
class _Chosen:
    """Terms of one stage: each with its function, its parameters bound, and whether it is wide."""

    names: tuple[str, ...]
    calls: tuple[Term, ...]
    wide: tuple[bool, ...]

    def __iter__(self) -> Iterator[Term]:
        return iter(self.calls)


class NumpyKernels:
    """The kernels of a task in NumPy.

    Args:
      built: the task.
      draws: makes the random numbers; None takes `FastDraws`.
      part: envs that joint vectors are worked on at a time; `BATCH` works on whole arrays.

    Raises:
      NoTwinError: a term of the task has no NumPy form.
    """

    def __init__(self, built: BuiltTask, draws: Draws | None = None, part: int = PART) -> None:
        config, kernel = built.config, built.kernel
        self.part, self.draws = part, draws if draws is not None else FastDraws(0)
        updates = dict.fromkeys(f.update for f in kernel.carried.values() if f.update is not None)
        resets = {n: p for n, p in config.events.items() if library.find("reset", n) is not None}
        self._terminations = _choose("termination", config.terminations)
        self._rewards = _choose("reward", config.rewards)
        self._carries = _choose("carry", {name: {} for name in updates})
        self._commands = _choose("command", config.commands)
        self._resets = _choose("reset", resets)
        self._intervals = _choose(
            "interval", {n: p for n, p in config.events.items() if n not in resets}
        )
        self._observe = ObservePlan(
            kernel.actor_layout, kernel.critic_layout, _twin_of, self.draws.unit
        )
        constants = {**built.model.constants, "control_dt": built.control_dt}
        derived = {name: call for (stage, name), call in TWINS.items() if stage == "derived"}
        self._layout = Layout(
            fields=built.model.fields,
            carried=kernel.carried,
            slices=kernel.carried_slices,
            constants={name: _constant(value) for name, value in constants.items()},
            derived=derived,
            wide=frozenset(name for stage, name in WIDE if stage == "derived"),
        )
        self._log = StepLog(kernel, self._terminations.names)
        self._checks = Checks(built)
        self._num_actions = len(built.model.ctrl_offset)
        self._local = threading.local()

    # -- the kernels ----------------------------------------------------------------------------

    def apply_action(self, first_block: int, last_block: int, num_envs: int, *arrays: Any) -> None:
        """Clip and check actions, map them to ctrl; the signature of the fused kernel."""
        given = dict(zip(ARRAYS, arrays, strict=True))
        small = self._chunks(self.part)[1]
        for envs in _ranges(first_block, last_block, num_envs, self.part):
            views = {name: given[name][envs] for name in _PER_ENV}
            small.bind(views, np.arange(envs.start, envs.stop))
            _act(small, given, self._num_actions)

    def step(self, first_block: int, last_block: int, num_envs: int, *arrays: Any) -> None:
        """Phase A; the signature of the fused kernel."""
        given = dict(zip(ARRAYS, arrays, strict=True))
        for envs in _ranges(first_block, last_block, num_envs, BATCH):
            views = {name: given[name][envs] for name in _PER_ENV}
            ids = np.arange(envs.start, envs.stop)
            chunk, small = self._chunks(len(ids))
            chunk.bind(views, ids)
            if not self._advance(chunk, small, given):
                self._advance_alive(views, ids, given)

    def sample_resets(self, env_ids: NDArray[np.int32], *arrays: Any) -> None:
        """Draw states of new episodes; the signature of the fused kernel."""
        given = dict(zip(ARRAYS, arrays, strict=True))
        if not len(env_ids):
            return
        given["episode_io"][env_ids] += 1
        qpos = np.tile(given["default_qpos_in"], (len(env_ids), 1))
        qvel = np.zeros((len(env_ids), given["reset_qvel_out"].shape[1]))
        chunk = self._chunks(self.part)[0]
        chunk.bind({}, env_ids.astype(np.int64))
        self.draws.begin(chunk.ids, given["episode_io"][env_ids], -1)
        for call in self._resets:
            call(chunk, qpos, qvel)
        given["reset_qpos_out"][env_ids] = qpos
        given["reset_qvel_out"][env_ids] = qvel

    def observe_resets(self, env_ids: NDArray[np.int32], *arrays: Any) -> None:
        """Phase C; the signature of the fused kernel."""
        given = dict(zip(ARRAYS, arrays, strict=True))
        for first in range(0, len(env_ids), self.part):
            self._observe_resets(env_ids[first : first + self.part].astype(np.int64), given)

    # -- phase A --------------------------------------------------------------------------------

    def _advance(self, c: Chunk, small: Chunk, given: Arrays) -> bool:
        """Step envs of which none has failed; False, and nothing done, where one has."""
        a, rewards = c.arrays, c.stack("rewards", len(self._rewards.calls))
        for part, piece in c.parts(small):
            if not self._checks.state_is_good(piece.arrays):
                return False
            for call, out, wide in zip(
                self._rewards, rewards[:, part], self._rewards.wide, strict=True
            ):
                if wide:
                    call(piece, out)
            self._observe.run_early(piece)
        np.add(a["step_io"], 1, out=a["step_io"])
        self._clear_pushes(a)
        self.draws.begin(c.ids, a["episode_io"], a["step_io"])
        ends, terminated, truncated = self._ends(c, given)
        c.terminated = terminated
        for call, out, wide in zip(self._rewards, rewards, self._rewards.wide, strict=True):
            if not wide:
                call(c, out)
        total = np.dot(given["weights_in"], rewards, out=c.vector("total"))
        np.multiply(total, c.number("control_dt"), out=total)
        for call in (*self._carries, *self._commands):
            call(c)
        if self._intervals.calls:
            for call in self._intervals:
                a["pushed_out"][call(c)] = 1
        c.forget()
        fine = all_finite([total])
        for _, piece in c.parts(small):
            self._observe.run(piece)
            fine = all_finite([piece.arrays["obs_out"], piece.arrays["critic_obs_out"]]) and fine
        good = None if fine else self._bad_terms(c, total, given["log_io"])
        self._finish(c, given, good, (ends, truncated, total))
        return True

    def _ends(self, c: Chunk, given: Arrays) -> tuple[Mask, Mask, Mask]:
        ends = c.stack("ends", max(1, len(self._terminations.calls)), np.bool_)
        terminated, truncated = c.mask("terminated"), c.mask("truncated")
        terminated[:] = False
        for call, end in zip(self._terminations, ends, strict=False):
            call(c, end)
            np.logical_or(terminated, end, out=terminated)
        np.greater_equal(c.arrays["step_io"], given["max_steps_in"][0], out=truncated)
        np.greater(truncated, terminated, out=truncated)
        return ends, terminated, truncated

    def _finish(
        self, c: Chunk, given: Arrays, good: I64 | None, results: tuple[Mask, Mask, Any]
    ) -> None:
        """Write the results of a step and its statistics; `good`: rows, where not all are."""
        ends, truncated, total = results
        a, terminated, log = c.arrays, c.terminated, given["log_io"]
        rewards = c.stack("rewards", len(self._rewards.calls))
        rows = slice(None) if good is None else good
        a["reward_out"][rows] = total[rows]
        a["return_io"][rows] += total[rows]
        a["terminated_out"][rows] = terminated[rows]
        a["truncated_out"][rows] = truncated[rows]
        if good is None:
            self._log.add_steps(log, c.ids, rewards, total)
        else:
            self._log.add_rows(log, c.ids[good], rewards[:, good], total[good])
        done = np.flatnonzero(np.logical_or(terminated, truncated, out=c.mask("m0")))
        done = done if good is None else np.intersect1d(done, good)
        if len(done):
            _keep_final(a, done)
            lengths = a["step_io"][done] - a["start_step_io"][done]
            closed = (a["return_io"][done], lengths, truncated[done], ends[:, done])
            self._log.add_episodes(log, c.ids[done], *closed)

    def _bad_terms(self, c: Chunk, total: Any, log: Any) -> I64 | None:
        """Mark the rows in which a term gave something not finite; return the others."""
        fine = finite_rows([c.arrays["obs_out"], c.arrays["critic_obs_out"], total])
        if fine.all():
            return None
        c.arrays["failure_io"][~fine] = BAD_TERM
        self._fail(c.arrays, np.flatnonzero(~fine), c.ids, log)
        return np.flatnonzero(fine)

    def _advance_alive(self, views: Arrays, ids: I64, given: Arrays) -> None:
        """Step a batch in which some envs have failed: the others on copies of their rows."""
        failed = self._checks.find_failed(views)
        rows, alive = np.flatnonzero(failed), np.flatnonzero(~failed)
        views["step_io"][rows] += 1
        self._clear_pushes(views)
        self._fail(views, rows, ids, given["log_io"])
        if not len(alive):
            return
        copies = {name: view[alive] for name, view in views.items()}
        chunk = Chunk(self._layout, self.draws, len(alive))
        chunk.bind(copies, ids[alive])
        small = Chunk(self._layout, self.draws, self.part, chunk)
        assert self._advance(chunk, small, given)
        for name, copy in copies.items():
            views[name][alive] = copy

    def _clear_pushes(self, views: Arrays) -> None:
        """Forget the pushes of the last step; few rows were pushed, so few are written."""
        if self._intervals.calls:
            views["push_out"][np.flatnonzero(views["pushed_out"])] = 0.0
        views["pushed_out"][:] = 0

    def _fail(self, views: Arrays, rows: I64, ids: I64, log: Any) -> None:
        """Terminate envs: reward 0, the last observation, no statistics but the reason."""
        views["reward_out"][rows] = 0.0
        views["terminated_out"][rows] = 1
        views["truncated_out"][rows] = 0
        _keep_final(views, rows)
        self._log.add_failures(log, ids[rows], views["failure_io"][rows])

    # -- resets ---------------------------------------------------------------------------------

    def _observe_resets(self, ids: I64, given: Arrays) -> None:
        for name in ("step_io", "start_step_io", "return_io"):
            given[name][ids] = 0
        if self._intervals.calls:
            given["push_out"][ids] = 0.0
            given["pushed_out"][ids] = 0
        copies = {name: given[name][ids] for name in _OBSERVED}
        carried = copies["fields_io"]
        for name, columns in self._layout.slices.items():
            value = self._layout.carried[name].reset
            if name == "ctrl":
                carried[:, columns] = given["ctrl_offset_in"]
            elif value is not None:
                carried[:, columns] = value
        c, small = self._chunks(self.part)
        c.bind(copies, ids, fresh=True)
        self.draws.begin(ids, given["episode_io"][ids], 0)
        for call in (*self._commands, *self._intervals):
            call(c)
        c.forget()
        for _, piece in c.parts(small):
            self._observe.run_early(piece)
            self._observe.run(piece)
        for name in _OBSERVED[2:]:
            given[name][ids] = copies[name]
        results = [copies["obs_out"], copies["critic_obs_out"]]
        fine = all_finite(results) or finite_rows(results)
        given["failure_io"][ids] = np.where(fine, 0, BAD_TERM)

    # -- chunks ---------------------------------------------------------------------------------

    def _chunks(self, size: int) -> tuple[Chunk, Chunk]:
        """Return this thread's chunk of `size` envs with one for its parts, made at first use."""
        if not hasattr(self._local, "chunks"):
            self._local.chunks = {}
        chunks: dict[int, tuple[Chunk, Chunk]] = self._local.chunks
        if size not in chunks:
            whole = Chunk(self._layout, self.draws, size)
            chunks[size] = (whole, Chunk(self._layout, self.draws, self.part, whole))
        return chunks[size]


def _ranges(first_block: int, last_block: int, num_envs: int, size: int) -> list[slice]:
    """Cut blocks of envs into ranges of at most `size` envs."""
    stop = min(last_block * BLOCK, num_envs)
    starts = range(first_block * BLOCK, stop, size)
    return [slice(start, min(start + size, stop)) for start in starts]


def _act(c: Chunk, given: Arrays, num_actions: int) -> None:
    """The action map of one chunk."""
    a, limit = c.arrays, float(given["action_clip_in"][0])
    asked, action = a["policy_action_in"], c.matrix("clipped", num_actions)
    np.clip(asked, -limit, limit, out=action)
    a["failure_io"][:] = 0
    if not all_finite([asked]):
        bad = np.flatnonzero(~np.isfinite(asked).all(axis=1))
        action[bad] = 0.0
        a["failure_io"][bad] = BAD_ACTION
    np.copyto(c.carried("prev_action"), c.carried("action"))
    np.copyto(c.carried("action"), action)
    target = c.matrix("target", num_actions, np.float64)
    np.copyto(target, action)
    np.multiply(target, c.tiled("ctrl_scale_in", given["ctrl_scale_in"]), out=target)
    np.add(target, c.tiled("ctrl_offset_in", given["ctrl_offset_in"]), out=target)
    np.copyto(c.carried("ctrl"), target, casting="same_kind")
    np.copyto(a["ctrl_out"], target[:, None, :])


def _keep_final(a: Arrays, rows: I64) -> None:
    """Keep the observations of the state in which episodes ended."""
    a["final_obs_out"][rows] = a["obs_out"][rows]
    a["final_critic_obs_out"][rows] = a["critic_obs_out"][rows]


def _constant(value: Any) -> Any:
    return float(np.float32(value)) if np.ndim(value) == 0 else np.asarray(value, np.float32)


def _twin_of(stage: str, name: str) -> Term:
    if (stage, name) not in TWINS:
        raise NoTwinError(f"the {stage} term '{name}' has no NumPy form")
    return TWINS[stage, name]


def _choose(stage: str, chosen: Mapping[str, Mapping[str, Any]]) -> _Chosen:
    """Return the NumPy forms of the chosen terms, their parameters bound."""
    calls = []
    for name, given in chosen.items():
        function = _twin_of(stage, name)
        parameters = {k: v for k, v in given.items() if k != "weight"}
        unknown = sorted(set(parameters) - set(inspect.signature(function).parameters))
        if unknown:
            raise NoTwinError(f"the NumPy form of the {stage} term '{name}' lacks {unknown}")
        calls.append(partial(function, **parameters) if parameters else function)
    return _Chosen(tuple(chosen), tuple(calls), tuple((stage, n) in WIDE for n in chosen))


class NumpyFusedKernel(FusedKernel):
    """A task's kernel whose module is the NumPy baseline."""

    def load(self) -> Any:
        """Return the four functions under the names of the fused kernel."""
        numpy: NumpyKernels = self.__dict__["numpy"]
        return SimpleNamespace(
            apply_action=numpy.apply_action,
            step_serial=numpy.step,
            step_parallel=numpy.step,
            sample_resets=numpy.sample_resets,
            observe_resets=numpy.observe_resets,
        )


def with_numpy(built: BuiltTask, draws: Draws | None = None, part: int = PART) -> BuiltTask:
    """Return the task with the NumPy baseline in place of its kernel.

    Raises:
      NoTwinError: a term of the task has no NumPy form, or it has delays or an encoder bias.
    """
    for name, entry in built.config.randomization.entries():
        if not isinstance(entry, ModelEntry):
            raise NoTwinError(f"randomization.{name} has no NumPy form")
    kernel = NumpyFusedKernel(
        **{f.name: getattr(built.kernel, f.name) for f in fields(FusedKernel)}
    )
    kernel.__dict__["numpy"] = NumpyKernels(built, draws, part)
    return replace(built, kernel=kernel)
