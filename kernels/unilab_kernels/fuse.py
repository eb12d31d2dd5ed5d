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
prange are lost, so the arrays are flat arguments; row views cost reference counting and hide their
length, and merging dozens of small functions takes Numba most of its time, so the bodies of terms
are written out (see ``inline.py``); a serial and a parallel twin need distinct names to have
distinct cache entries.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Mapping

import numpy as np

from . import hardware as hw
from . import terms as registry
from .arrays import ARRAYS, FusedKernel, seed_key
from .bind import UNPLACED, Binder, near, placed
from .bounds import check_indices
from .inline import NotInlinableError, inline
from .merge import merge_into_loads, merge_loops, scale_stores
from .module_text import module_text
from .operands import Binding, Row
from .rng import bits64, first01, fold, second01
from .sections import (
    add_noise,
    apply_action,
    check_first_observations,
    check_state,
    check_terms,
    clear_push,
    close_episode,
    copy_columns,
    copy_final,
    env_key,
    failed_row,
    function_text,
    indent,
    load_fields,
    reset_fields,
)
from .source import SourceCollector
from .spec import (
    BLOCK,
    FAILURES,
    CarriedField,
    KernelSpec,
    ObservationSlice,
    TermParameters,
)
from .terms import Term, TermError

__all__ = ["ARRAYS", "FusedKernel", "assemble", "seed_key"]


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
            **hw.carried_fields(spec.hardware, num_actions),
        }
        self.slices: dict[str, slice] = {}
        start = 0
        for name, carried in self.carried.items():
            self.slices[name] = slice(start, start + carried.size)
            start += carried.size
        self.binder = Binder(spec, self.carried, dict(spec.constants), self.slices)
        self.collector = SourceCollector()
        self.measured: Row | None = None  # joint positions with the encoders' bias

    # -- the parts ------------------------------------------------------------------------------

    def build(self) -> FusedKernel:
        spec = self.spec
        for helper in (fold, bits64, first01, second01):
            self.collector.add(helper, helper.__name__)
        terminations = self._terminations()
        rewards = self._rewards()
        carries = self._carries()
        commands = self._events("command", spec.commands, "commands")
        resets, intervals, first_intervals = self._split_events()
        actor, actor_layout = self._observations(
            spec.actor, "observations.actor", "obs_out", measured=self._measured()
        )
        # What both see without noise or parameters is computed once.
        plain = {p.name: p.start for p in actor_layout if self._is_exact(p.name)}
        critic, critic_layout = self._observations(
            spec.critic, "observations.critic", "critic_obs_out", plain
        )
        draws, fills, shows = hw.hardware_lines(
            spec.hardware, actor_layout, self.binder.params, self.slices, self.carried
        )
        load = self._load()
        observe = [*actor, *critic]
        log_names = (
            "steps",
            "reward_sum",
            "episodes",
            "return_sum",
            "length_sum",
            "timeouts",
            *(f"reward/{n}" for n in spec.rewards),
            *(f"termination/{n}" for n in spec.terminations),
            *(f"failure/{n}" for n in FAILURES[1:]),
        )
        sizes = (actor_layout[-1].stop, critic_layout[-1].stop)
        step = [*load, *terminations, *rewards, *carries, "fresh = False", *commands, *intervals]
        bodies = [
            function_text(
                "apply_action",
                apply_action(spec.num_actions, self.slices),
            ),
            *self._step([*step, *observe], log_names, sizes, shows, pushes=bool(intervals)),
            self._sample_resets(resets),
            self._observe_resets(
                [*draws, *load, "fresh = True", *commands, *first_intervals, *observe],
                sizes,
                fills,
            ),
        ]
        return FusedKernel(
            name=spec.name,
            source=module_text(spec.name, self.collector, self.binder, self.slices, bodies),
            actor_layout=actor_layout,
            critic_layout=critic_layout,
            reward_names=tuple(spec.rewards),
            termination_names=tuple(spec.terminations),
            carried_slices=self.slices,
            carried=self.carried,
            log_names=log_names,
            num_scratch=max(self.binder.num_scratch, 1),
            weights=np.asarray(
                [float(p["weight"]) for p in spec.rewards.values()],  # type: ignore[arg-type]
                dtype=np.float32,
            ),
            params=self.binder.params.array(),
            constants=self.binder.constant_values.array(),
        )

    def _call(
        self,
        term: Term,
        given: TermParameters,
        where: str,
        *,
        result: str = "",
        convert: str = "",
    ) -> list[str]:
        """Bind a term and return its statements."""
        arguments = self.binder.arguments(term, given, where=where)
        return self._written(term, arguments, where, result=result, convert=convert)

    def _written(
        self,
        term: Term,
        arguments: Mapping[str, Binding],
        where: str,
        *,
        result: str = "",
        convert: str = "",
    ) -> list[str]:
        """Return the statements of a term: its body written out or, where that fails, a call."""
        name = f"{term.stage}_{term.name}"
        function = self.collector.add(term.function, name, is_term=True)
        title = f"# {where}: {term.summary}"
        try:
            check_indices(function, {n: a.size for n, a in arguments.items() if isinstance(a, Row)})
            lines = inline(function, arguments, prefix=name, result=result, convert=convert)
            return [title, *lines]
        except TermError as error:
            raise TermError(f"{where}: {error}") from error
        except NotInlinableError:
            texts = ", ".join(ast.unparse(a.load()) for a in arguments.values())
            call = f"{convert}({name}({texts}))" if convert else f"{name}({texts})"
            return [title, f"{result} = {call}" if result else call]

    def _terminations(self) -> list[str]:
        lines: list[str] = []
        ends: list[str] = []
        cuts = ["step >= max_steps_in[0]"]
        for k, (name, given) in enumerate(self.spec.terminations.items()):
            where = f"terminations.{name}"
            term = self.binder.find("termination", name, where)
            lines += self._call(term, given, where, result=f"ends_{k}", convert="bool")
            (cuts if term.truncates else ends).append(f"ends_{k}")
        return [
            *lines,
            f"terminated = {' or '.join(ends) or 'False'}",
            f"truncated = ({' or '.join(cuts)}) and not terminated",
        ]

    def _rewards(self) -> list[str]:
        pieces = []
        for k, (name, given) in enumerate(self.spec.rewards.items()):
            where = f"rewards.{name}"
            if "weight" not in given:
                raise TermError(f"{where}: 'weight' is missing; set {where}.weight")
            term = self.binder.find("reward", name, where)
            lines = self._call(term, given, where, result=f"reward_{k}", convert="f32")
            pieces.append([*lines, f"total += weights_in[{k}] * reward_{k}"])
        dt = self.binder.constant("control_dt").load()
        return ["total = f32(0.0)", *merge_loops(pieces), f"reward = total * {ast.unparse(dt)}"]

    def _carries(self) -> list[str]:
        names = dict.fromkeys(f.update for f in self.carried.values() if f.update is not None)
        lines = []
        for name in names:
            where = f"update of carried fields '{name}'"
            lines += self._call(self.binder.find("carry", name, where), {}, where)
        return lines

    def _events(self, stage: str, chosen: Mapping[str, TermParameters], where: str) -> list[str]:
        lines = []
        for name, given in chosen.items():
            place = f"{where}.{name}"
            lines += self._call(self.binder.find(stage, name, place), given, place)
        return lines

    def _split_events(self) -> tuple[list[str], list[str], list[str]]:
        """Return the reset events, the interval events, and these at the start of an episode."""
        resets: list[str] = []
        intervals: list[str] = []
        first_intervals: list[str] = []
        for name, given in self.spec.events.items():
            where = f"events.{name}"
            if (term := registry.find("reset", name)) is not None:
                resets += self._call(term, given, where)
            elif (term := registry.find("interval", name)) is not None:
                arguments = self.binder.arguments(term, given, where=where)
                intervals += self._written(term, arguments, where, result="pushes", convert="bool")
                intervals += ["if pushes:", "    pushed_out[i] = 1"]
                first_intervals += self._written(term, arguments, where)
            else:
                valid = [*registry.names("reset"), *registry.names("interval")]
                raise TermError(f"{where}: unknown event term '{name}'; {near(name, valid)}")
        if intervals:
            first_intervals += [*clear_push(self.spec.nv), "pushed_out[i] = 0"]
        return resets, intervals, first_intervals

    def _observations(
        self,
        chosen: Mapping[str, TermParameters],
        where: str,
        array: str,
        plain: Mapping[str, int] | None = None,
        measured: Row | None = None,
    ) -> tuple[list[str], tuple[ObservationSlice, ...]]:
        if not chosen:
            raise TermError(f"{where}: needs at least one term")
        pieces: list[list[str]] = []
        layout: list[ObservationSlice] = []
        start = 0
        for name, given in chosen.items():
            place = f"{where}.{name}"
            term = self.binder.find("observation", name, place)
            # Binding first: it says which field is missing before a size is asked for.
            arguments = self.binder.arguments(term, given, where=place, out=UNPLACED)
            if measured is not None and "joint_pos" in arguments:
                arguments["joint_pos"] = measured
            stop = start + self.binder.out_size(term)
            row = Row(array, "i", start, stop - start)
            if plain and name in plain and not given and not term.defaults:
                written = copy_columns(place, array, start, stop, "obs_out", plain[name])
            else:
                written = self._written(term, placed(arguments, row), place)
            noise, scale = float(given.get("noise", 0.0)), float(given.get("scale", 1.0))  # type: ignore[arg-type]
            if "noise" in given:
                written += self._noise(place, array, start, stop, noise, scale)
            elif "scale" in given:
                factor = ast.unparse(self.binder.params.add("scale", scale).load())
                written = scale_stores(written, array, factor) or [
                    *written,
                    f"for j in range({start}, {stop}):",
                    f"    {array}[i, j] *= {factor}",
                ]
            pieces.append(written)
            layout.append(ObservationSlice(name, start, stop, noise, scale))
            start = stop
        return merge_loops(pieces, array), tuple(layout)

    def _measured(self) -> Row | None:
        """Return where the joint positions are as the encoders give them, if those have a bias."""
        if self.spec.hardware.encoder_bias is not None:
            self.measured = self.binder.measured()
        return self.measured

    def _is_exact(self, name: str) -> bool:
        """Say whether a term shows the actor what it would show the critic."""
        term, late = registry.find("observation", name), self.spec.hardware.observation_delay
        assert term is not None
        biased = self.measured is not None and "joint_pos" in term.arguments
        return not (self.spec.actor[name] or biased or (late is not None and name in late.terms))

    def _noise(
        self, where: str, array: str, start: int, stop: int, noise: float, scale: float
    ) -> list[str]:
        width = ast.unparse(self.binder.params.add("noise", noise).load())
        factor = ast.unparse(self.binder.params.add("scale", scale).load())
        stream = zlib.crc32(f"noise/{where}".encode())
        return add_noise(array, start, stop, stream=stream, width=width, factor=factor)

    def _load(self) -> list[str]:
        """Return the lines that load the state fields and compute the derived ones."""
        binder = self.binder
        derived: list[list[str]] = []
        for name, (term, arguments) in binder.derived_used.items():
            result = "" if isinstance(binder.scratch[name], Row) else f"v_{name}"
            derived.append(self._written(term, arguments, f"derived.{name}", result=result))
        loads = load_fields(binder.state_used, binder.scratch)
        lines = merge_into_loads(loads, derived, "scratch")
        if self.measured is not None:
            true = binder.scratch["joint_pos"]
            assert isinstance(true, Row)
            lines += hw.measure(self.slices["encoder_bias"].start, true, self.measured)
        return lines

    # -- the functions --------------------------------------------------------------------------

    def _step(
        self,
        terms: list[str],
        log_names: tuple[str, ...],
        sizes: tuple[int, int],
        shows: list[str],
        *,
        pushes: bool,
    ) -> list[str]:
        spec = self.spec
        column = {name: k for k, name in enumerate(log_names)}
        copy = copy_final(*sizes)
        failed = failed_row(column["failure/unstable"], copy)
        first_reward = column["timeouts"] + 1
        pushed = ["if pushed_out[i] != 0:", *indent(clear_push(spec.nv))] if pushes else []
        env = [
            "step_io[i] += 1",
            "step = step_io[i]",
            *pushed,
            "pushed_out[i] = 0",
            *check_state(spec, self.binder.state_used),
            "if failure != 0:",
            *indent(failed),
            "    continue",
            *env_key("step"),
            *terms,
            *check_terms(*sizes, failed),
            *shows,
            "reward_out[i] = reward",
            "return_io[i] += reward",
            "terminated_out[i] = 1 if terminated else 0",
            "truncated_out[i] = 1 if truncated else 0",
            f"log[{column['steps']}] += 1.0",
            f"log[{column['reward_sum']}] += reward",
            *[f"log[{first_reward + k}] += reward_{k}" for k in range(len(spec.rewards))],
            "if terminated or truncated:",
            *indent(close_episode(column, len(spec.terminations), copy)),
        ]
        body = [
            "last = state_in.shape[1] - 1",
            "for block in range(first_block, last_block):",
            "    scratch = scratch_io[block]",
            "    log = log_io[block]",
            f"    for i in range(block * {BLOCK}, min(block * {BLOCK} + {BLOCK}, num_envs)):",
            *indent(env, 2),
        ]
        call = f"step_serial(block, block + 1, num_envs, {', '.join(ARRAYS)})"
        parallel = ["for block in prange(first_block, last_block):", f"    {call}"]
        return [
            function_text("step_serial", self._with_locals(body)),
            function_text("step_parallel", parallel, parallel=True),
        ]

    def _sample_resets(self, resets: list[str]) -> str:
        env = [
            "i = env_ids[n]",
            "episode_io[i] += 1",
            *env_key("-1"),
            f"for j in range({self.spec.nq}):",
            "    reset_qpos_out[i, j] = default_qpos_in[j]",
            f"for j in range({self.spec.nv}):",
            "    reset_qvel_out[i, j] = 0.0",
            *resets,
        ]
        body = ["for n in range(len(env_ids)):", *indent(env)]
        return function_text("sample_resets", self._with_locals(body), head="env_ids")

    def _observe_resets(self, terms: list[str], sizes: tuple[int, int], fills: list[str]) -> str:
        env = [
            "i = env_ids[n]",
            f"scratch = scratch_io[i // {BLOCK}]",
            "step_io[i] = 0",
            "start_step_io[i] = 0",
            "return_io[i] = 0.0",
            *env_key("0"),
            *reset_fields(self.carried, self.slices),
            *terms,
            *check_first_observations(*sizes),
            *fills,
        ]
        body = ["last = state_in.shape[1] - 1", "for n in range(len(env_ids)):", *indent(env)]
        return function_text("observe_resets", self._with_locals(body), head="env_ids")

    def _with_locals(self, body: list[str]) -> list[str]:
        """Put before a body what reads the parameters and constants that it uses."""
        used = set(re.findall(r"\w+", "\n".join(body)))
        return [*(line for line in self.binder.locals() if line.split(" ")[0] in used), *body]
