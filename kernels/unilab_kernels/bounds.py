"""Checks, before a kernel is written, that the indices of a term stay inside its rows.

Rows lie side by side in the kernel's arrays and compiled code checks no index: a term that counts
over one row and reads a shorter one would silently get its neighbour's numbers. So every index made
of loop counters, lengths and whole numbers is followed here, whether the term is then written out
or called. A counter that some comparison looks at (``if j < len(row)``) is not judged: the term
guards the index itself.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

from .operands import Parsed
from .terms import TermError


def check_indices(function: Parsed, sizes: Mapping[str, int]) -> None:
    """Check a function and the helpers that it hands rows to.

    Args:
      function: the function.
      sizes: length of each argument that is a row.

    Raises:
      TermError: an index leaves its row.
    """
    walk = _Walk(function, sizes)
    for statement in function.definition.body:
        walk.visit(statement)


def counters(definition: ast.FunctionDef) -> set[str]:
    """Return the names that are only ever set by ``for name in range(...)``, from 0 or more."""
    counted: Counter[str] = Counter()
    for node in ast.walk(definition):
        if (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Call)
            and ast.unparse(node.iter.func) == "range"
            and len(node.iter.args) < 3
            and (len(node.iter.args) == 1 or _is_natural(node.iter.args[0]))
        ):
            counted[node.target.id] += 1
    stored = Counter(_stored(definition))
    return {name for name, count in counted.items() if stored[name] == count}


Interval = tuple[int, int]  # the least and the greatest value


class _Walk(ast.NodeVisitor):
    """Goes through one function with the range of each loop counter at hand."""

    def __init__(self, function: Parsed, sizes: Mapping[str, int]) -> None:
        self.function = function
        stored = set(_stored(function.definition))
        self.sizes = {name: size for name, size in sizes.items() if name not in stored}
        self.counters = counters(function.definition) - _compared(function.definition)
        self.loops: dict[str, tuple[Interval, ast.expr]] = {}  # counter -> values, range(...)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        values = self._range(node.iter) if name in self.counters else None
        if values is not None:
            if values[0] > values[1]:
                return  # never runs
            self.loops[name] = (values, node.iter)
        for statement in node.body:
            self.visit(statement)
        self.loops.pop(name, None)

    def visit_Call(self, node: ast.Call) -> None:
        helper = (
            self.function.helpers.get(node.func.id) if isinstance(node.func, ast.Name) else None
        )
        if helper is not None:
            names = [argument.arg for argument in helper.definition.args.args]
            given = dict(zip(names, node.args, strict=False))
            given |= {k.arg: k.value for k in node.keywords if k.arg is not None}
            rows = {n: a.id for n, a in given.items() if isinstance(a, ast.Name)}
            check_indices(
                helper, {n: self.sizes[row] for n, row in rows.items() if row in self.sizes}
            )
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.sizes:
            values, size = self._interval(node.slice), self.sizes[node.value.id]
            if values is not None and not (-size <= values[0] and values[1] < size):
                raise TermError(self._message(node, values, size))
        self.generic_visit(node)

    def _message(self, node: ast.Subscript, values: Interval, size: int) -> str:
        row = ast.unparse(node.value)
        text = f"'{self.function.definition.name}' indexes {ast.unparse(node)}"
        used = {name: self.loops[name][1] for name in _names(node.slice) if name in self.loops}
        if used:
            loops = " and ".join(f"{name} in {ast.unparse(loop)}" for name, loop in used.items())
            end = f"up to {values[1]}" if values[1] >= size else f"down to {values[0]}"
            text += f" with {loops}, which goes {end}"
        others = [name for loop in [*used.values(), node.slice] for name in _names(loop)]
        others = [n for n in dict.fromkeys(others) if n in self.sizes and n != row]
        counts = "".join(f" and '{name}' has {self.sizes[name]}" for name in others)
        valid = f"valid: 0 to {size - 1}" if size else "it is empty"
        return f"{text}, but '{row}' has {size} number(s){counts}; {valid}"

    def _range(self, node: ast.expr) -> Interval | None:
        """Return the first and last value of ``range(...)`` where no other counter is in it."""
        assert isinstance(node, ast.Call)
        ends = [self._interval(argument) for argument in node.args]
        if _names(node) & self.counters or not all(ends):
            return None
        bounds = [end[0] for end in ends if end is not None]
        return (0 if len(bounds) == 1 else bounds[0], bounds[-1] - 1)

    def _interval(self, node: ast.expr) -> Interval | None:
        """Return the values that an index can have; None where that is not known."""
        if isinstance(node, ast.Constant):
            return (node.value, node.value) if type(node.value) is int else None
        if isinstance(node, ast.Name):
            if node.id in self.loops:
                return self.loops[node.id][0]
            text = self.function.constants.get(node.id, "")
            return (int(text), int(text)) if text.isdigit() else None
        if isinstance(node, ast.Call):
            is_length = ast.unparse(node.func) == "len" and len(node.args) == 1
            size = self.sizes.get(ast.unparse(node.args[0])) if is_length else None
            return None if size is None else (size, size)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._interval(node.operand)
            return None if inner is None else (-inner[1], -inner[0])
        if isinstance(node, ast.BinOp):
            left, right = self._interval(node.left), self._interval(node.right)
            return None if left is None or right is None else _combined(node.op, left, right)
        return None


def _combined(operator: ast.operator, left: Interval, right: Interval) -> Interval | None:
    if isinstance(operator, ast.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(operator, ast.Sub):
        return left[0] - right[1], left[1] - right[0]
    if isinstance(operator, ast.Mult):
        products = [a * b for a in left for b in right]
        return min(products), max(products)
    if right[0] == right[1] > 0:
        if isinstance(operator, ast.FloorDiv):
            return left[0] // right[0], left[1] // right[0]
        if isinstance(operator, ast.Mod):
            inside = left if left[0] >= 0 and left[1] < right[0] else (0, right[0] - 1)
            return inside
    return None


def _compared(definition: ast.FunctionDef) -> set[str]:
    """Return the names that comparisons look at themselves, not as an index."""
    found: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Compare):
            found |= _names(node, within_indices=False)
    return found


def _names(node: ast.AST, *, within_indices: bool = True) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Subscript) and not within_indices:
        return set()
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        found |= _names(child, within_indices=within_indices)
    return found


def _stored(definition: ast.FunctionDef) -> list[str]:
    return [
        node.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    ]


def _is_natural(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0
