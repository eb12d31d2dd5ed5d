"""Assembles a task's terms into four kernels, as one readable module of source text.

==================  =============================================================================
function            what it does, for each env
==================  =============================================================================
``apply_action``    clip and check the policy's action, map it to ctrl for every substep
``step_serial``,    phase A: load and derive, failures, terminations, rewards, carried fields,
``step_parallel``   commands, interval events, observations, final observations, statistics
``sample_resets``   draw the state of a new episode for the env ids given
``observe_resets``  phase C: fresh fields, commands and observations for the env ids given
==================  =============================================================================

All four take the same arrays (`ARRAYS`), indexed by env over the whole batch, so that groups and
shards are just ranges. Numba facts behind the form (0.68): writes through a NamedTuple inside
prange are lost, so the arrays are flat arguments; row views passed to a function that is not
inlined cost reference counting, so terms are inlined; a serial and a parallel twin need distinct
names to have distinct cache entries.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import jit
from . import terms as registry
from .bind import Binder, near
from .rng import fold, uniform01
from .source import SourceCollector
from .spec import (
    BAD_ACTION,
    BAD_TERM,
    BLOCK,
    DIVERGED,
    DIVERGED_LIMIT,
    FAILURES,
    CarriedField,
    KernelSpec,
    ObservationSlice,
    StateField,
    TermParameters,
)
from .terms import Term, TermError

# name -> (shape, dtype, meaning). The order is the order of the kernels' arguments.
ARRAYS: dict[str, tuple[str, str, str]] = {
    "state_in": ("(N, T, nstate)", "f64", "state rows after each substep"),
    "sensor_in": ("(N, T, S)", "f64", "sensor rows of each substep"),
    "failure_io": ("(N,)", "u8", "why the env failed in this step, see FAILURES"),
    "policy_action_in": ("(N, A)", "f32", "what the policy asked for"),
    "ctrl_out": ("(N, T, A)", "f64", "what the actuators get at each substep"),
    "fields_io": ("(N, F)", "f32", "all carried fields, packed"),
    "step_io": ("(N,)", "i32", "control steps done in this episode"),
    "start_step_io": ("(N,)", "i32", "age at which the episode was started"),
    "episode_io": ("(N,)", "i32", "episodes begun, counted from 1"),
    "return_io": ("(N,)", "f64", "sum of rewards of this episode"),
    "log_io": ("(blocks, L)", "f64", "sums for the log, one row per block of 64 envs"),
    "scratch_io": ("(blocks, X)", "f32", "loaded and derived fields of the env at work"),
    "obs_out": ("(N, O)", "f32", "actor observation"),
    "critic_obs_out": ("(N, C)", "f32", "critic observation"),
    "final_obs_out": ("(N, O)", "f32", "observation before the reset, where done"),
    "final_critic_obs_out": ("(N, C)", "f32", "critic observation before the reset, where done"),
    "reward_out": ("(N,)", "f32", "reward"),
    "terminated_out": ("(N,)", "u8", "1 where the episode ended as a failure"),
    "truncated_out": ("(N,)", "u8", "1 where the episode was cut by its time limit"),
    "reset_qpos_out": ("(N, nq)", "f64", "sampled state of a new episode"),
    "reset_qvel_out": ("(N, nv)", "f64", "sampled state of a new episode"),
    "push_out": ("(N, nv)", "f64", "what interval events add to qvel"),
    "pushed_out": ("(N,)", "u8", "1 where push_out is to be applied"),
    "default_qpos_in": ("(nq,)", "f64", "state that resets start from"),
    "ctrl_offset_in": ("(A,)", "f64", "ctrl = offset + scale * action"),
    "ctrl_scale_in": ("(A,)", "f64", "ctrl = offset + scale * action"),
    "action_clip_in": ("(1,)", "f32", "|action| limit"),
    "weights_in": ("(K,)", "f32", "weight of each reward term"),
    "params_in": ("(P,)", "f32", "parameters of all terms"),
    "constants_in": ("(Q,)", "f32", "constants of the model"),
    "seed_in": ("(1,)", "u64", "key of (seed, rank)"),
    "max_steps_in": ("(1,)", "i32", "control steps of a full episode"),
}


@dataclass(frozen=True)
class FusedKernel:
    """An assembled kernel: its text, and the layout of everything that it reads and writes.

    Attributes:
      source: the module's text.
      actor_layout, critic_layout: where each observation term is.
      reward_names, termination_names: in the order of the weights and of the log.
      carried_slices: name -> slice into a row of ``fields_io``; ``carried_reset``: reset values.
      log_names: the columns of ``log_io``.
      num_scratch: width of ``scratch_io``.
      weights, params, constants: run-time values, f32.
      seed_in: given to the kernels; see `seed_key`.
    """

    name: str
    source: str
    actor_layout: tuple[ObservationSlice, ...]
    critic_layout: tuple[ObservationSlice, ...]
    reward_names: tuple[str, ...]
    termination_names: tuple[str, ...]
    carried_slices: Mapping[str, slice]
    carried: Mapping[str, CarriedField]
    log_names: tuple[str, ...]
    num_scratch: int
    weights: np.ndarray
    params: np.ndarray
    constants: np.ndarray

    @property
    def num_obs(self) -> int:
        """O."""
        return self.actor_layout[-1].stop

    @property
    def num_critic_obs(self) -> int:
        """C."""
        return self.critic_layout[-1].stop

    @property
    def num_fields(self) -> int:
        """Width of ``fields_io``."""
        return max(s.stop for s in self.carried_slices.values())

    def write(self) -> Path:
        """Write the module to the kernel cache and return its path."""
        return jit.write_module(self.name, self.source)

    def load(self) -> Any:
        """Return the compiled module, with the functions named above."""
        return jit.load_module(self.write())


def seed_key(seed: int, rank: int = 0) -> np.ndarray:
    """Return the base key of (seed, rank), (1,) u64, for ``seed_in``."""
    with np.errstate(over="ignore"):
        key = fold(fold(np.uint64(0), np.uint64(seed & (2**64 - 1))), np.uint64(rank))
    return np.asarray([key], dtype=np.uint64)


def assemble(spec: KernelSpec) -> FusedKernel:
    """Fuse the terms of a task.

    Args:
      spec: fields, constants and chosen terms.

    Returns:
      The kernel, not compiled yet.

    Raises:
      TermError: a term is unknown, wrongly configured, or asks for something the task lacks.
    """
    return _Assembler(spec).build()


class _Assembler:
    """Writes the module, section by section. One instance per kernel."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        num_actions = spec.num_actions
        self.carried: dict[str, CarriedField] = {
            "action": CarriedField(num_actions),
            "prev_action": CarriedField(num_actions),
            "ctrl": CarriedField(num_actions),
            **spec.carried_fields,
        }
        self.slices: dict[str, slice] = {}
        start = 0
        for name, carried in self.carried.items():
            self.slices[name] = slice(start, start + carried.size)
            start += carried.size
        self.binder = Binder(spec, self.carried, dict(spec.constants))
        self.collector = SourceCollector()

    # -- the parts ------------------------------------------------------------------------------

    def build(self) -> FusedKernel:
        spec = self.spec
        self.collector.add(fold, "fold")
        self.binder.hoist_constant("control_dt")
        terminations = self._terminations()
        rewards = self._rewards()
        carries = self._carries()
        commands = self._events("command", spec.commands, "commands")
        resets, intervals = self._split_events()
        actor, actor_layout = self._observations(spec.actor, "observations.actor", "obs")
        critic, critic_layout = self._observations(
            spec.critic, "observations.critic", "critic_obs"
        )
        derived = [
            self._call(term, {}, f"derived.{name}", out=f"v_{name}")
            for name, term in self.binder.derived_used.items()
        ]
        load, num_scratch, views = self._load(derived)
        observe = [*actor, *critic]
        reward_names = tuple(spec.rewards)
        termination_names = tuple(spec.terminations)
        log_names = (
            "steps",
            "reward_sum",
            "episodes",
            "return_sum",
            "length_sum",
            "timeouts",
            *(f"reward/{n}" for n in reward_names),
            *(f"termination/{n}" for n in termination_names),
            *(f"failure/{n}" for n in FAILURES[1:]),
        )
        bodies = [
            self._apply_action(),
            self._step_block(views, load, terminations, rewards, carries, commands, intervals,
                             observe, log_names),
            self._sample_resets(resets),
            self._observe_resets(views, load, commands, intervals, observe),
        ]  # fmt: skip
        return FusedKernel(
            name=spec.name,
            source=self._module(bodies),
            actor_layout=actor_layout,
            critic_layout=critic_layout,
            reward_names=reward_names,
            termination_names=termination_names,
            carried_slices=self.slices,
            carried=self.carried,
            log_names=log_names,
            num_scratch=num_scratch,
            weights=np.asarray(
                [float(p.get("weight", 1.0)) for p in spec.rewards.values()],  # type: ignore[arg-type]
                dtype=np.float32,
            ),
            params=self.binder.params.array(),
            constants=self.binder.constant_values.array(),
        )

    def _call(
        self, term: Term, given: TermParameters, where: str, *, out: str = ""
    ) -> str:
        """Return a statement (with `out`, or for a scalar derived field) or an expression."""
        name = self.collector.add(term.function, f"{term.stage}__{term.name}", is_term=True)
        if term.stage == "derived" and term.size == 0:
            return f"{out} = {name}({self.binder.arguments(term, given, where=where)})"
        return f"{name}({self.binder.arguments(term, given, where=where, out=out)})"

    def _terminations(self) -> list[str]:
        lines = []
        for k, (name, given) in enumerate(self.spec.terminations.items()):
            term = self.binder.find("termination", name)
            lines.append(f"t_{k} = {self._call(term, given, f'terminations.{name}')}")
        flags = " or ".join(f"t_{k}" for k in range(len(lines))) or "False"
        return [*lines, f"terminated = bool({flags})"]

    def _rewards(self) -> list[str]:
        lines = ["total = f32(0.0)"]
        for k, (name, given) in enumerate(self.spec.rewards.items()):
            if "weight" not in given:
                raise TermError(f"rewards.{name}: 'weight' is missing; set rewards.{name}.weight")
            term = self.binder.find("reward", name)
            lines.append(f"r_{k} = f32({self._call(term, given, f'rewards.{name}')})")
            lines.append(f"total += weights_in[{k}] * r_{k}")
        return lines

    def _carries(self) -> list[str]:
        names = dict.fromkeys(f.update for f in self.carried.values() if f.update is not None)
        return [
            self._call(self.binder.find("carry", name), {}, f"carried field update '{name}'")
            for name in names
        ]

    def _events(
        self, stage: str, chosen: Mapping[str, TermParameters], where: str
    ) -> list[str]:
        return [
            self._call(self.binder.find(stage, name), given, f"{where}.{name}")
            for name, given in chosen.items()
        ]

    def _split_events(self) -> tuple[list[str], list[str]]:
        resets: dict[str, TermParameters] = {}
        intervals: dict[str, TermParameters] = {}
        for name, given in self.spec.events.items():
            if registry.find("reset", name) is not None:
                resets[name] = given
            elif registry.find("interval", name) is not None:
                intervals[name] = given
            else:
                valid = [*registry.names("reset"), *registry.names("interval")]
                raise TermError(f"unknown event term '{name}'; {near(name, valid)}")
        return (
            self._events("reset", resets, "events"),
            self._events("interval", intervals, "events"),
        )

    def _observations(
        self, chosen: Mapping[str, TermParameters], where: str, row: str
    ) -> tuple[list[str], tuple[ObservationSlice, ...]]:
        if not chosen:
            raise TermError(f"{where}: needs at least one term")
        lines: list[str] = []
        layout: list[ObservationSlice] = []
        start = 0
        for name, given in chosen.items():
            term = self.binder.find("observation", name)
            # Binding first: it says which field is missing before a size is asked for.
            call = self._call(term, given, f"{where}.{name}", out="@")
            stop = start + self.binder.out_size(term)
            lines.append(call.replace("@", f"{row}[{start}:{stop}]"))
            noise, scale = float(given.get("noise", 0.0)), float(given.get("scale", 1.0))  # type: ignore[arg-type]
            if noise != 0.0 or scale != 1.0:
                lines += self._noise(f"{where}.{name}", row, start, stop, noise, scale)
            layout.append(ObservationSlice(name, start, stop, noise, scale))
            start = stop
        return lines, tuple(layout)

    def _noise(
        self, where: str, row: str, start: int, stop: int, noise: float, scale: float
    ) -> list[str]:
        """Uniform noise in +-noise (in the term's unit), then the scale."""
        local = where.replace(".", "_")
        self.binder.hoisted[f"n_{local}"] = self.binder.params.add(noise)
        self.binder.hoisted[f"s_{local}"] = self.binder.params.add(scale)
        stream = zlib.crc32(f"noise/{where}".encode())
        return [
            f"noise_key = fold(env_key, u64({stream}))",
            f"for j in range({stop - start}):",
            f"    wiggle = n_{local} * (f32(2.0) * uniform01(noise_key, j) - f32(1.0))",
            f"    {row}[{start} + j] = s_{local} * ({row}[{start} + j] + wiggle)",
        ]

    def _load(self, derived: list[str]) -> tuple[list[str], int, list[str]]:
        """Return the load section, the scratch width, and the views hoisted over the env loop."""
        lines: list[str] = []
        views: list[str] = []
        start = 0
        for name, state in self.binder.state_used.items():
            size = len(state.columns)
            lines += _load_field(state, start)
            if state.scalar:
                lines.append(f"v_{name} = scratch[{start}]")
            else:
                views.append(f"v_{name} = scratch[{start}:{start + size}]")
            start += size
        num_state = start
        for name, term in self.binder.derived_used.items():
            if term.size != 0:
                size = self.binder.out_size(term)
                views.append(f"v_{name} = scratch[{start}:{start + size}]")
                start += size
        check = [
            "finite = True",
            f"for j in range({num_state}):",
            "    finite = finite and np.isfinite(scratch[j])",
        ]
        return [*lines, *check, "if finite:", *_indent(derived or ["pass"], 1)], max(start, 1), views

    # -- the functions --------------------------------------------------------------------------

    def _rows(self) -> list[str]:
        lines = []
        for name in self.carried:
            if name in self.binder.carried_used:
                s = self.slices[name]
                lines.append(f"row_{name} = fields_io[i, {s.start}:{s.stop}]")
        return lines

    def _hoisted(self) -> list[str]:
        return [f"{local} = {expression}" for local, expression in self.binder.hoisted.items()]

    def _apply_action(self) -> str:
        action, prev, ctrl = (self.slices[n] for n in ("action", "prev_action", "ctrl"))
        body = f"""
limit = action_clip_in[0]
for i in range(first_block * {BLOCK}, min(last_block * {BLOCK}, num_envs)):
    ok = True
    for j in range({self.spec.num_actions}):
        ok = ok and np.isfinite(policy_action_in[i, j])
    failure_io[i] = 0 if ok else {BAD_ACTION}
    for j in range({self.spec.num_actions}):
        a = min(max(policy_action_in[i, j], -limit), limit) if ok else f32(0.0)
        fields_io[i, {prev.start} + j] = fields_io[i, {action.start} + j]
        fields_io[i, {action.start} + j] = a
        target = ctrl_offset_in[j] + ctrl_scale_in[j] * np.float64(a)
        fields_io[i, {ctrl.start} + j] = f32(target)
        for t in range(ctrl_out.shape[1]):
            ctrl_out[i, t, j] = target"""
        return _function("apply_action", body.strip("\n").split("\n"))

    def _step_block(
        self,
        views: list[str],
        load: list[str],
        terminations: list[str],
        rewards: list[str],
        carries: list[str],
        commands: list[str],
        intervals: list[str],
        observe: list[str],
        log_names: tuple[str, ...],
    ) -> str:
        spec = self.spec
        column = {name: k for k, name in enumerate(log_names)}
        num_terms, num_ends = len(spec.rewards), len(spec.terminations)
        first_reward, first_end = column["timeouts"] + 1, column["timeouts"] + 1 + num_terms
        log_rewards = [f"log[{first_reward + k}] += r_{k}" for k in range(num_terms)]
        log_ends = [f"log[{first_end + k}] += 1.0 if t_{k} else 0.0" for k in range(num_ends)]
        env = [
            "step_io[i] += 1",
            "step = step_io[i]",
            *_env_key("step"),
            *self._rows(),
            "obs = obs_out[i]",
            "critic_obs = critic_obs_out[i]",
            "pushed_out[i] = 0",
            *load,
            "failure = failure_io[i]",
            *_diverged(spec),
            "if failure != 0:",
            *_indent(_failed_row(first_end + num_ends), 1),
            "    continue",
            *terminations,
            f"truncated = step >= max_steps_in[0] and not terminated",
            *rewards,
            f"reward = total * f32(c_control_dt)",
            *carries,
            "fresh = False",
            *commands,
            *_push(intervals, spec.nv),
            *observe,
            *_check_terms(),
            "reward_out[i] = reward",
            "return_io[i] += reward",
            "terminated_out[i] = 1 if terminated else 0",
            "truncated_out[i] = 1 if truncated else 0",
            f"log[{column['steps']}] += 1.0",
            f"log[{column['reward_sum']}] += reward",
            *log_rewards,
            "if terminated or truncated:",
            *_indent(_close_episode(column, log_ends), 1),
        ]
        body = [
            *self._hoisted(),
            "scratch = scratch_io[block]",
            "log = log_io[block]",
            *views,
            f"for i in range(block * {BLOCK}, min(block * {BLOCK} + {BLOCK}, num_envs)):",
            *_indent(env, 1),
        ]
        serial = ["for block in range(first_block, last_block):", f"    _step_block({_CALL_BLOCK})"]
        parallel = ["for block in prange(first_block, last_block):", f"    _step_block({_CALL_BLOCK})"]
        return "\n\n\n".join(
            [
                _function("_step_block", body, head="block, num_envs"),
                _function("step_serial", serial),
                _function("step_parallel", parallel, parallel=True),
            ]
        )

    def _sample_resets(self, resets: list[str]) -> str:
        env = [
            "i = env_ids[n]",
            "episode_io[i] += 1",
            *_env_key("-1"),
            f"for j in range({self.spec.nq}):",
            "    reset_qpos_out[i, j] = default_qpos_in[j]",
            f"for j in range({self.spec.nv}):",
            "    reset_qvel_out[i, j] = 0.0",
            *resets,
        ]
        body = [*self._hoisted(), "for n in range(len(env_ids)):", *_indent(env, 1)]
        return _function("sample_resets", body, head="env_ids")

    def _observe_resets(
        self,
        views: list[str],
        load: list[str],
        commands: list[str],
        intervals: list[str],
        observe: list[str],
    ) -> str:
        fields = []
        for name, carried in self.carried.items():
            if carried.reset is not None:
                s = self.slices[name]
                fields += [
                    f"for j in range({s.start}, {s.stop}):",
                    f"    fields_io[i, j] = f32({carried.reset!r})",
                ]
        env = [
            "i = env_ids[n]",
            f"scratch = scratch_io[i // {BLOCK}]",
            *views,
            "step_io[i] = 0",
            "start_step_io[i] = 0",
            "return_io[i] = 0.0",
            "failure_io[i] = 0",
            *_env_key("0"),
            *fields,
            *self._rows(),
            "obs = obs_out[i]",
            "critic_obs = critic_obs_out[i]",
            *load,
            "fresh = True",
            *commands,
            *intervals,
            *observe,
        ]
        body = [*self._hoisted(), "for n in range(len(env_ids)):", *_indent(env, 1)]
        return _function("observe_resets", body, head="env_ids")

    def _module(self, bodies: list[str]) -> str:
        if any("uniform01(noise_key" in body for body in bodies):
            self.collector.add(uniform01, "uniform01")
        used = [f"#   {name:21s} {shape:15s} {dtype}  {text}" for name, (shape, dtype, text)
                in ARRAYS.items()]  # fmt: skip
        return "\n\n\n".join(
            [
                f'"""Kernels of the task \'{self.spec.name}\', generated. Do not edit."""',
                "\n".join([jit.PRELUDE.strip(), *self.collector.imports.values(),
                           *self.collector.constants.values()]),
                "# The arrays (N envs, T substeps, A actions, O and C observations):\n"
                + "\n".join(used),
                *self.collector.functions,
                *bodies,
            ]
        ) + "\n"  # fmt: skip


_CALL_BLOCK = "block, num_envs, " + ", ".join(ARRAYS)


def _function(
    name: str,
    body: list[str],
    *,
    head: str = "first_block, last_block, num_envs",
    parallel: bool = False,
) -> str:
    options = "**_OPTIONS, parallel=True" if parallel else "**_OPTIONS"
    arrays = list(ARRAYS)
    rows = [", ".join(arrays[k : k + 4]) for k in range(0, len(arrays), 4)]
    signature = ",\n    ".join([head, *rows])
    return "\n".join([f"@njit({options})", f"def {name}(\n    {signature},\n):", *_indent(body, 1)])


def _indent(lines: list[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]


def _env_key(step: str) -> list[str]:
    return [f"env_key = fold(fold(fold(seed_in[0], u64(i)), u64(episode_io[i])), u64({step}))"]


def _load_field(state: StateField, start: int) -> list[str]:
    """Copy one field into the scratch row as f32: contiguous columns as a loop."""
    columns = state.columns
    contiguous = columns == tuple(range(columns[0], columns[0] + len(columns)))
    array = "state_in" if state.source == "state" else "sensor_in"
    if state.source == "state" or state.reduce == "last":
        if contiguous and len(columns) > 2:
            return [
                f"for j in range({len(columns)}):",
                f"    scratch[{start} + j] = f32({array}[i, {array}.shape[1] - 1, {columns[0]} + j])",
            ]
        return [
            f"scratch[{start + k}] = f32({array}[i, {array}.shape[1] - 1, {c}])"
            for k, c in enumerate(columns)
        ]
    lines: list[str] = []
    for k, c in enumerate(columns):
        lines += [
            f"peak = {array}[i, 0, {c}]",
            f"for t in range(1, {array}.shape[1]):",
            f"    peak = max(peak, {array}[i, t, {c}])",
            f"scratch[{start + k}] = f32(peak)"
            if state.reduce == "max"
            else f"scratch[{start + k}] = f32(1.0) if peak > 0.0 else f32(0.0)",
        ]
    return lines


def _diverged(spec: KernelSpec) -> list[str]:
    first, count = spec.qpos_column, spec.nq + spec.nv
    assert spec.qvel_column == spec.qpos_column + spec.nq
    return [
        "last = state_in.shape[1] - 1",
        f"for j in range({first}, {first + count}):",
        f"    finite = finite and abs(state_in[i, last, j]) < {DIVERGED_LIMIT}",
        "if failure == 0 and not finite:",
        f"    failure = {DIVERGED}",
        f"    failure_io[i] = {DIVERGED}",
    ]


def _failed_row(first_failure: int) -> list[str]:
    """A failed env: reward 0, terminated, the last finite observation, no statistics."""
    return [
        "reward_out[i] = 0.0",
        "terminated_out[i] = 1",
        "truncated_out[i] = 0",
        "for j in range(obs.shape[0]):",
        "    final_obs_out[i, j] = obs[j]",
        "for j in range(critic_obs.shape[0]):",
        "    final_critic_obs_out[i, j] = critic_obs[j]",
        f"log[{first_failure} + failure - 1] += 1.0",
    ]


def _push(intervals: list[str], nv: int) -> list[str]:
    if not intervals:
        return []
    lines = [f"for j in range({nv}):", "    push_out[i, j] = 0.0"]
    for call in intervals:
        lines += [f"if {call}:", "    pushed_out[i] = 1"]
    return lines


def _check_terms() -> list[str]:
    """A finite state must give finite numbers: else a term is at fault, and the run stops."""
    return [
        "finite = np.isfinite(reward)",
        "for j in range(obs.shape[0]):",
        "    finite = finite and np.isfinite(obs[j])",
        "for j in range(critic_obs.shape[0]):",
        "    finite = finite and np.isfinite(critic_obs[j])",
        "if not finite:",
        f"    failure_io[i] = {BAD_TERM}",
        "    terminated = True",
    ]


def _close_episode(column: Mapping[str, int], log_ends: list[str]) -> list[str]:
    return [
        "for j in range(obs.shape[0]):",
        "    final_obs_out[i, j] = obs[j]",
        "for j in range(critic_obs.shape[0]):",
        "    final_critic_obs_out[i, j] = critic_obs[j]",
        f"log[{column['episodes']}] += 1.0",
        f"log[{column['return_sum']}] += return_io[i]",
        f"log[{column['length_sum']}] += step - start_step_io[i]",
        f"log[{column['timeouts']}] += 1.0 if truncated else 0.0",
        *log_ends,
    ]
