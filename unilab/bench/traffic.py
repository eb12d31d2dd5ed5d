"""What a kernel really reads and writes, counted in its own source text.

Loops over columns have fixed bounds in a generated kernel, so walking through its text meets every
element of every per-env array that an env touches. Counted is each element once: a read if it is
read before it is written, a write if it is written. Scratch and log rows (one for 64 envs) and
constants stay in the first-level cache and are left out, as is all that happens to failed envs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unilab_kernels.arrays import ARRAYS, FusedKernel

_BYTES = {"f64": 8, "f32": 4, "i32": 4, "u64": 8, "u8": 1}
_PER_ENV = {name for name, (shape, _, _) in ARRAYS.items() if shape.startswith("(N")}
Element = tuple[str, tuple[int | str, ...]]


@dataclass
class Traffic:
    """Bytes of one env and control step.

    Attributes:
      read_bytes, written_bytes: of every env.
      kernel_bytes: of these, what the step kernel alone moves.
      done_bytes: more, of an env whose episode ends, resets included.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    kernel_bytes: int = 0
    done_bytes: int = 0

    def total(self, num_envs: int, done_per_step: float) -> float:
        """Return the bytes that a control step of a batch moves."""
        return num_envs * (self.read_bytes + self.written_bytes) + done_per_step * self.done_bytes


def step_traffic(kernel: FusedKernel, num_substeps: int) -> Traffic:
    """Count the four kernels of a task, called as one control step calls them."""
    functions = {
        node.name: node
        for node in ast.parse(kernel.source).body
        if isinstance(node, ast.FunctionDef)
    }
    total = Traffic()
    for name in ("apply_action", "step_serial"):
        walk = count(functions[name], num_substeps, kernel.constants)
        total.read_bytes += size(walk.read)
        total.written_bytes += size(walk.written)
        total.done_bytes += size(walk.done)
        if name == "step_serial":
            total.kernel_bytes = size(walk.read) + size(walk.written)
    for name in ("sample_resets", "observe_resets"):
        walk = count(functions[name], num_substeps, kernel.constants)
        total.done_bytes += size(walk.read) + size(walk.written)
    return total


def size(elements: set[Element]) -> int:
    """Return the bytes of some elements."""
    return sum(_BYTES[ARRAYS[name][1]] for name, _ in elements)


def count(function: ast.FunctionDef, num_substeps: int, constants: NDArray[np.float32]) -> _Walk:
    """Walk through the text of one kernel; `constants` are the values of ``constants_in``."""
    walk = _Walk(num_substeps, constants)
    walk.block(function.body, {"last": num_substeps - 1})
    return walk


@dataclass
class _Walk:
    """Elements met so far: read before written, written, and touched where an episode ends."""

    num_substeps: int
    constants: NDArray[np.float32]
    read: set[Element] = field(default_factory=set)
    written: set[Element] = field(default_factory=set)
    done: set[Element] = field(default_factory=set)
    at_end: bool = False

    def block(self, body: list[ast.stmt], known: dict[str, int]) -> None:
        for statement in body:
            self.statement(statement, known)

    def statement(self, node: ast.stmt, known: dict[str, int]) -> None:
        if isinstance(node, ast.For):
            for inner in self._rounds(node, known):
                self.block(node.body, inner)
        elif isinstance(node, ast.If):
            self._branch(node, known)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            self._assign(node, known)
        else:
            self._reads(node, known)

    def _branch(self, node: ast.If, known: dict[str, int]) -> None:
        self._reads(node.test, known)
        test = ast.unparse(node.test)
        if isinstance(node.body[-1], ast.Continue) or "not finite" in test:
            return  # a failed env
        if test == "pushed_out[i] != 0":
            return  # once in several seconds
        before, self.at_end = self.at_end, self.at_end or _is_end(node.test)
        self.block(node.body, known)
        self.at_end = before
        self.block(node.orelse, known)

    def _assign(
        self, node: ast.Assign | ast.AugAssign | ast.AnnAssign, known: dict[str, int]
    ) -> None:
        if node.value is not None:
            self._reads(node.value, known)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                self._remember(target.id, node.value, known)
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if isinstance(part, ast.Subscript) and (element := self._element(part, known)):
                    if isinstance(node, ast.AugAssign):
                        self._add(element, self.read)
                    self._add(element, self.written)

    def _remember(self, name: str, value: ast.expr, known: dict[str, int]) -> None:
        """Keep a local variable that an index may be made of: int(...), a constant, another one."""
        is_constant = isinstance(value, ast.Subscript) and "constants_in" in ast.unparse(value)
        is_alias = isinstance(value, ast.Name) and value.id in known
        if is_constant or is_alias or ast.unparse(value).startswith("int("):
            with suppress(ValueError):
                known[name] = self._value(value, known)

    def _reads(self, node: ast.AST, known: dict[str, int]) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Subscript) and (element := self._element(inner, known)):
                self._add(element, self.read)

    def _add(self, element: Element, where: set[Element]) -> None:
        if where is self.read and element in self.written:
            return
        if self.at_end:
            if element not in self.written and element not in self.read:
                self.done.add(element)
            return
        where.add(element)

    def _element(self, node: ast.Subscript, known: dict[str, int]) -> Element | None:
        """Return the array element of an env, or None where it is something else."""
        if not isinstance(node.value, ast.Name) or node.value.id not in _PER_ENV:
            return None
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not (isinstance(index[0], ast.Name) and index[0].id == "i"):
            return None
        return node.value.id, tuple(self._place(part, known) for part in index[1:])

    def _rounds(self, node: ast.For, known: dict[str, int]) -> Iterator[dict[str, int]]:
        """Yield what is known in each round of a loop over columns; once for one over envs."""
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        name = node.target.id
        if name in ("i", "n", "block"):
            yield dict(known)
            return
        for value in range(*(self._value(part, known) for part in node.iter.args)):
            yield {**known, name: value}

    def _place(self, node: ast.expr, known: dict[str, int]) -> int | str:
        """Return an index, or what stands for one that only the running kernel knows."""
        try:
            return self._value(node, known)
        except ValueError:
            return f"{ast.unparse(node)} {sorted(known.items())}"

    def _value(self, node: ast.expr, known: dict[str, int]) -> int:
        """Work out an index."""
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name) and node.id in known:
            return known[node.id]
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, known), self._value(node.right, known)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv):
                return left // right
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "int":
            return self._value(node.args[0], known)
        if isinstance(node, ast.Subscript):
            if ast.unparse(node.value) == "constants_in":
                return int(self.constants[self._value(node.slice, known)])
            if ast.unparse(node.value).endswith(".shape"):  # state_in.shape[1]
                return self.num_substeps
        raise ValueError(ast.unparse(node))


def _is_end(test: ast.expr) -> bool:
    """Say whether this is the branch of envs whose episode ends."""
    return ast.unparse(test) == "terminated or truncated"


def count_calls(kernel: FusedKernel, names: tuple[str, ...]) -> dict[str, int]:
    """Return how often an env calls functions of `math` in a step where nothing rare happens."""
    module = ast.parse(kernel.source)
    step = next(
        n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "step_serial"
    )
    totals = dict.fromkeys(names, 0)

    def visit(node: ast.AST, times: int) -> None:
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue):
            return
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            bounds = [ast.unparse(part) for part in node.iter.args]
            fixed = all(bound.isdigit() for bound in bounds)
            times *= len(range(*map(int, bounds))) if fixed else 1
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called.removeprefix("math.") in totals:
            totals[called.removeprefix("math.")] += times
        for child in ast.iter_child_nodes(node):
            visit(child, times)

    visit(step, 1)
    return totals
