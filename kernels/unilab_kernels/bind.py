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
from .spec import CarriedField, KernelSpec, ParameterValue, StateField
from .terms import Term, TermError

# Config keys of a term that the kernel itself uses; they are no arguments of the term.
RESERVED = {"reward": {"weight"}, "observation": {"noise", "scale"}}
BUILTIN_FIELDS = ("terminated", "fresh", "key")


class FlatArray:
    """A flat float32 array being laid out; hands out the source text that reads each entry."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.values: list[float] = []

    def add(self, value: float | np.ndarray | list[float]) -> str:
        """Append a scalar or an array and return the expression that reads it."""
        start = len(self.values)
        if isinstance(value, int | float | np.floating | np.integer):
            self.values.append(float(value))
            return f"{self.argument}[{start}]"
        numbers = [float(v) for v in np.asarray(value).ravel()]
        self.values.extend(numbers)
        return f"{self.argument}[{start}:{start + len(numbers)}]"

    def array(self) -> np.ndarray:
        """Return the laid-out numbers, (at least 1,) f32."""
        return np.asarray(self.values or [0.0], dtype=np.float32)


@dataclass
class Binder:
    """Binds terms to one kernel. Collects what they need, in order of first use."""

    spec: KernelSpec
    carried: Mapping[str, CarriedField]
    constants: Mapping[str, float | np.ndarray]
    params: FlatArray = field(default_factory=lambda: FlatArray("params_in"))
    constant_values: FlatArray = field(default_factory=lambda: FlatArray("constants_in"))
    hoisted: dict[str, str] = field(default_factory=dict)  # local name -> expression
    state_used: dict[str, StateField] = field(default_factory=dict)
    derived_used: dict[str, Term] = field(default_factory=dict)
    carried_used: set[str] = field(default_factory=set)

    def find(self, stage: str, name: str) -> Term:
        """Return a term by name, or raise `TermError` with the nearest valid names."""
        term = registry.find(stage, name)
        if term is None:
            raise TermError(f"unknown {stage} term '{name}'; {near(name, registry.names(stage))}")
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
        self, term: Term, given: Mapping[str, ParameterValue], *, where: str, out: str = ""
    ) -> str:
        """Return the argument list of a call, as source text.

        Args:
          term: the term.
          given: its parameters from the config.
          where: the config place, for errors ("rewards.track_lin_vel").
          out: expression for ``out``.
        """
        parameters = {k: v for k, v in given.items() if k not in RESERVED.get(term.stage, ())}
        texts: list[str] = []
        expected: set[str] = set()
        for name in term.arguments:
            text = out if name == "out" else self._known(term, name, where)
            if not text:
                expected.add(name)
                text = self._parameter(term, name, parameters, where)
            texts.append(text)
        extra = set(parameters) - expected
        if extra:
            wrong = sorted(extra)[0]
            valid = expected | RESERVED.get(term.stage, set())
            raise TermError(f"{where}: no parameter '{wrong}'; {near(wrong, valid)}")
        return ", ".join(texts)

    def hoist_constant(self, name: str) -> str:
        """Return the local variable that holds a constant."""
        local = f"c_{name}"
        if local not in self.hoisted:
            self.hoisted[local] = self.constant_values.add(self.constants[name])
        return local

    def _known(self, term: Term, name: str, where: str) -> str:
        spec = self.spec
        if name == "key":
            stream = zlib.crc32(f"{term.stage}/{term.name}".encode())
            return f"fold(env_key, u64({stream}))"
        if name in ("terminated", "fresh"):
            return name
        if term.stage == "reset":
            if name in ("qpos_io", "qvel_io"):
                return f"reset_{name[:4]}_out[i]"
            return self.hoist_constant(name) if name in self.constants else ""
        if name == "push_out":
            return "push_out[i]"
        if name.endswith("_io") and name[:-3] in self.carried:
            self.carried_used.add(name[:-3])
            return f"row_{name[:-3]}"
        if name in spec.state_fields:
            self.state_used.setdefault(name, spec.state_fields[name])
            return f"v_{name}"
        if name in self.carried:
            self.carried_used.add(name)
            return f"row_{name}[0]" if self.carried[name].scalar else f"row_{name}"
        if name in self.constants:
            return self.hoist_constant(name)
        derived = registry.find("derived", name)
        if derived is not None:
            self._use_derived(derived, where)
            return f"v_{name}"
        return ""

    def _use_derived(self, term: Term, where: str) -> None:
        if term.name in self.derived_used:
            return
        self.arguments(term, {}, where=f"{where} (derived field '{term.name}')", out="-")
        self.derived_used[term.name] = term  # after what it depends on

    def _parameter(
        self, term: Term, name: str, given: Mapping[str, ParameterValue], where: str
    ) -> str:
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
        local = f"p_{where.replace('.', '_')}_{name}"
        self.hoisted[local] = self.params.add(value)
        return local

    def field_names(self) -> list[str]:
        """Return the names of all fields a term may read."""
        return sorted({*self.spec.state_fields, *self.carried, *registry.names("derived")})


def near(name: str, valid: set[str] | list[str]) -> str:
    """Return "did you mean ...?" or the list of valid names."""
    close = difflib.get_close_matches(name, sorted(valid), n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "valid: " + (", ".join(sorted(valid)) or "none")
