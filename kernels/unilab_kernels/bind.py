"""Resolves the argument names of terms to what the kernel passes, and lays the numbers out.

Every parameter, weight and constant goes into a flat run-time array: changing a number in the
config never recompiles.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from . import terms as registry
from .operands import Binding, Row, Scalar
from .spec import CarriedField, KernelSpec, ParameterValue, StateField
from .terms import Term, TermError

# Config keys of a term that the kernel itself uses; they are no arguments of the term.
RESERVED = {"reward": {"weight"}, "observation": {"noise", "scale"}}
# Arguments that only terms of these stages can have.
STAGES_OF = {
    "terminated": ("reward", "carry"),
    "fresh": ("command", "interval", "observation"),
    "key": ("command", "interval", "reset", "observation", "carry"),
    "push_out": ("interval",),
    "env_id": ("reset",),
    "episode": ("reset",),
    "qpos_io": ("reset",),
    "qvel_io": ("reset",),
}
UNPLACED = Scalar("-")  # an ``out`` whose place is given later, by `placed`


class FlatArray:
    """A flat float32 array being laid out; hands out what reads each entry."""

    def __init__(self, argument: str, letter: str) -> None:
        self.argument, self.letter = argument, letter
        self.values: list[float] = []
        self.locals: dict[str, str] = {}  # local variable -> expression that reads the number

    def add(self, name: str, value: ParameterValue | np.ndarray) -> Binding:
        """Append a number or an array, called `name` for the reader, and return what reads it."""
        start = len(self.values)
        numbers = np.asarray(value, dtype=np.float32)
        self.values.extend(numbers.ravel().tolist())
        if numbers.ndim:
            return Row(self.argument, "", start, numbers.size)
        local = f"{self.letter}{start}_{name}"
        self.locals[local] = f"{self.argument}[{start}]"
        return Scalar(local)

    def array(self) -> np.ndarray:
        """Return the laid-out numbers, (at least 1,) f32."""
        return np.asarray(self.values or [0.0], dtype=np.float32)


@dataclass
class Binder:
    """Binds terms to one kernel. Collects what they need, in order of first use."""

    spec: KernelSpec
    carried: Mapping[str, CarriedField]
    constants: Mapping[str, float | np.ndarray]
    slices: Mapping[str, slice]  # of the carried fields
    params: FlatArray = field(default_factory=lambda: FlatArray("params_in", "p"))
    constant_values: FlatArray = field(default_factory=lambda: FlatArray("constants_in", "c"))
    constants_used: dict[str, Binding] = field(default_factory=dict)
    # Derived fields with what their arguments stand for, each after those that it reads.
    derived_used: dict[str, tuple[Term, dict[str, Binding]]] = field(default_factory=dict)
    state_used: dict[str, StateField] = field(default_factory=dict)
    scratch: dict[str, Binding] = field(default_factory=dict)  # loaded and derived fields
    num_scratch: int = 0
    _deriving: list[str] = field(default_factory=list)

    def find(self, stage: str, name: str, where: str) -> Term:
        """Return a term by name, or raise `TermError` with the nearest valid names.

        `where` is the config place, for the error ("rewards.track_lin_vel").
        """
        term = registry.find(stage, name)
        if term is None:
            raise TermError(
                f"{where}: unknown {stage} term '{name}'; {near(name, registry.names(stage))}"
            )
        return term

    def size(self, name: str) -> int:
        """Return the length of a field or constant."""
        if name in self.spec.state_fields:
            return len(self.spec.state_fields[name].columns)
        if name in self.carried:
            return self.carried[name].size
        if name in self.constants:
            return int(np.size(self.constants[name]))
        term = registry.find("derived", name)
        if term is None:
            raise TermError(f"nothing is called '{name}'")
        return self.out_size(term)

    def out_size(self, term: Term) -> int:
        """Return the length of a term's ``out``."""
        return term.size if isinstance(term.size, int) else self.size(term.size)

    def arguments(
        self,
        term: Term,
        given: Mapping[str, ParameterValue],
        *,
        where: str,
        out: Binding | None = None,
    ) -> dict[str, Binding]:
        """Return what each argument of a term stands for.

        Args:
          term: the term.
          given: its parameters from the config.
          where: the config place, for errors ("rewards.track_lin_vel").
          out: what ``out`` stands for.

        Raises:
          TermError: an argument is unknown or not available here; a parameter is missing or extra.
        """
        reserved = RESERVED.get(term.stage, set())
        parameters = {k: v for k, v in given.items() if k not in reserved}
        bound: dict[str, Binding] = {}
        expected: set[str] = set()
        for name in term.arguments:
            binding = out if name == "out" else self._known(term, name, where)
            if binding is None:
                expected.add(name)
                binding = self._parameter(term, name, parameters, where)
            bound[name] = binding
        extra = set(parameters) - expected
        if extra:
            wrong = min(extra)
            raise TermError(f"{where}: no parameter '{wrong}'; {near(wrong, expected | reserved)}")
        return bound

    def constant(self, name: str) -> Binding:
        """Return what reads a constant of the task."""
        if name not in self.constants_used:
            self.constants_used[name] = self.constant_values.add(name, self.constants[name])
        return self.constants_used[name]

    def locals(self) -> list[str]:
        """Return the lines that read parameters and constants into local variables."""
        return [
            f"{local} = {expression}"
            for flat in (self.params, self.constant_values)
            for local, expression in flat.locals.items()
        ]

    def _known(self, term: Term, name: str, where: str) -> Binding | None:
        if name in STAGES_OF:
            if term.stage not in STAGES_OF[name]:
                stages = ", ".join(STAGES_OF[name])
                raise TermError(
                    f"{where}: a {term.stage} term cannot read '{name}'; only {stages} terms can"
                )
            return self._special(term, name)
        if term.stage == "reset" and not self._known_to_reset(name):
            return self.constant(name) if name in self.constants else None
        if name.endswith("_io") and name[:-3] in self.carried:
            return self._carried_row(name[:-3])
        if name in self.spec.state_fields:
            return self._state(name)
        if name in self.carried:
            row = self._carried_row(name)
            single = self.carried[name].scalar
            return Scalar(f"{row.array}[{row.index}, {row.start}]") if single else row
        if name in self.constants:
            return self.constant(name)
        derived = registry.find("derived", name)
        return None if derived is None else self._derived(derived, where)

    def _known_to_reset(self, name: str) -> bool:
        """Say whether a reset term may use a field; the new state is not known to it yet.

        Carried fields are as the old episode left them; those kept across episodes it may write.
        """
        field_ = self.carried.get(name.removesuffix("_io"))
        return field_ is not None and (not name.endswith("_io") or field_.reset is None)

    def _special(self, term: Term, name: str) -> Binding:
        if name == "key":
            stream = zlib.crc32(f"{term.stage}/{term.name}".encode())
            return Scalar(f"fold(env_key, u64({stream}))", lazy=True)
        if name == "push_out":
            return Row("push_out", "i", 0, self.spec.nv, whole=True)
        if name == "qpos_io":
            return Row("reset_qpos_out", "i", 0, self.spec.nq, whole=True)
        if name == "qvel_io":
            return Row("reset_qvel_out", "i", 0, self.spec.nv, whole=True)
        if name == "env_id":
            return Scalar("i")
        if name == "episode":
            return Scalar("episode_io[i]")
        return Scalar(name)  # terminated, fresh

    def _carried_row(self, name: str) -> Row:
        return Row("fields_io", "i", self.slices[name].start, self.carried[name].size)

    def _state(self, name: str) -> Binding:
        if name not in self.scratch:
            field_ = self.spec.state_fields[name]
            self.state_used[name] = field_
            self.scratch[name] = self._scratch(0 if field_.scalar else len(field_.columns), name)
        return self.scratch[name]

    def _derived(self, term: Term, where: str) -> Binding:
        name = term.name
        if name in self._deriving:
            cycle = " -> ".join([*self._deriving[self._deriving.index(name) :], name])
            raise TermError(f"{where}: derived fields need each other: {cycle}")
        if name not in self.scratch:
            self._deriving.append(name)
            where = f"{where} (derived field '{name}')"
            bound = self.arguments(term, {}, where=where, out=UNPLACED)
            self._deriving.pop()
            self.scratch[name] = self._scratch(self.out_size(term), name)
            self.derived_used[name] = (term, placed(bound, self.scratch[name]))
        return self.scratch[name]

    def measured(self) -> Row:
        """Return the place (A,) of joint positions as encoders measure them.

        Raises:
          TermError: the task has no joint positions of its actuators.
        """
        field_ = self.spec.state_fields.get("joint_pos")
        if field_ is None or len(field_.columns) != self.spec.num_actions or field_.scalar:
            raise TermError(
                "an encoder bias needs a state field 'joint_pos' with one number for each actuator"
            )
        self._state("joint_pos")
        place = self._scratch(self.spec.num_actions, "measured")
        assert isinstance(place, Row)
        return place

    def _scratch(self, size: int, name: str) -> Binding:
        """Return where a loaded or derived field is kept while an env is worked on."""
        if size == 0:
            return Scalar(f"v_{name}")
        self.num_scratch += size
        return Row("scratch", "", self.num_scratch - size, size)

    def _parameter(
        self, term: Term, name: str, given: Mapping[str, ParameterValue], where: str
    ) -> Binding:
        if name in given:
            value: ParameterValue = given[name]
        elif name in term.defaults:
            value = term.defaults[name]
        else:
            raise TermError(
                f"{where}: '{name}' is neither a field, a constant nor a given parameter. Set it "
                f"with {where}.{name}=..., or declare it in the task. "
                f"Fields: {', '.join(self.field_names())}. "
                f"Constants: {', '.join(sorted(self.constants)) or 'none'}. "
                "Also: out, key, fresh, terminated, and '<carried field>_io' to write one"
            )
        return self.params.add(name, value)

    def field_names(self) -> list[str]:
        """Return the names of all fields a term may read."""
        return sorted({*self.spec.state_fields, *self.carried, *registry.names("derived")})


def placed(bound: Mapping[str, Binding], out: Binding) -> dict[str, Binding]:
    """Return the arguments of a term with its ``out``, if it has one, at its place."""
    return {name: out if name == "out" else binding for name, binding in bound.items()}


def near(name: str, valid: set[str] | list[str]) -> str:
    """Return "did you mean ...?" or the list of valid names."""
    close = difflib.get_close_matches(name, sorted(valid), n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "valid: " + (", ".join(sorted(valid)) or "none")
