"""Writes the body of a term into the kernel, its arguments replaced by what they stand for.

A row argument becomes direct reads of the array behind it (``joint_pos[j]`` turns into
``scratch[7 + j]``) and ``len(row)`` its number. So the compiled loops have known lengths, no view
is made, and Numba compiles one plain function instead of merging dozens.

A term that returns from inside a loop, or uses a construct not known here, is not written out: the
kernel then calls it as a function.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from .bounds import counters
from .operands import Binding, Parsed, Row, Scalar, expression
from .terms import TermError


class NotInlinableError(Exception):
    """The function must be called rather than written out."""


_LOOPS = (ast.For, ast.While)
_REFUSED = (
    ast.FunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Try,
    ast.With,
    ast.Yield,
    ast.Global,
    ast.Nonlocal,
    ast.Starred,
    ast.Delete,
    ast.NamedExpr,
)


def inline(
    function: Parsed,
    arguments: Mapping[str, Binding],
    *,
    prefix: str,
    result: str = "",
    convert: str = "",
) -> list[str]:
    """Return the statements of a function, for these arguments.

    Args:
      function: the function; `bounds.check_indices` has passed it.
      arguments: what each argument stands for.
      prefix: put before the names of its local variables.
      result: variable that gets the returned value; "" drops it.
      convert: function applied to the returned value ("f32").

    Raises:
      NotInlinableError: the kernel must call the function.
      TermError: a value is wanted, and some path returns none.
    """
    definition = function.definition
    body = [copy.deepcopy(s) for s in definition.body if not _is_docstring(s)]
    for node in ast.walk(ast.Module(body=body, type_ignores=[])):
        if isinstance(node, _REFUSED):
            raise NotInlinableError(definition.name)
        if isinstance(node, _LOOPS) and (_returns([node]) or node.orelse):
            raise NotInlinableError(definition.name)
    if result and not _gives_value(body):
        if convert != "bool":
            raise TermError(f"'{definition.name}' must return a number on every path")
        body.append(ast.Return(ast.Constant(False)))
    binder = _Bind(function, arguments, prefix)
    structured = _structured(body, result, convert)
    if _num_nodes(structured) > 4 * _num_nodes(body) + 200:  # many returns inside nested branches
        raise NotInlinableError(definition.name)
    statements = binder.statements(structured)
    module = ast.Module(body=[*binder.preamble, *statements], type_ignores=[])
    return ast.unparse(ast.fix_missing_locations(module)).split("\n")


class _Bind(ast.NodeTransformer):
    """Replaces the names of one function: arguments by their bindings, locals by prefixed names."""

    def __init__(self, function: Parsed, arguments: Mapping[str, Binding], prefix: str) -> None:
        self.name, self.prefix = function.definition.name, prefix
        self.constants, self.helpers = function.constants, function.helpers
        self.rows = {n: b for n, b in arguments.items() if isinstance(b, Row)}
        self.scalars = {n: b for n, b in arguments.items() if isinstance(b, Scalar)}
        stored = {
            node.id
            for node in ast.walk(function.definition)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        if stored & set(self.rows):
            raise NotInlinableError(self.name)
        self.locals = set(stored)
        self.counters = counters(function.definition)
        self.preamble: list[ast.stmt] = []
        for name, scalar in self.scalars.items():
            value = scalar.load()
            if name in stored or not (scalar.lazy or isinstance(value, ast.Name | ast.Constant)):
                self.preamble.append(ast.Assign([_kept(f"{prefix}__{name}", ast.Store())], value))
                self.locals.add(name)

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Transform a list of statements; a call of a helper with rows becomes its statements."""
        done: list[ast.stmt] = []
        for statement in body:
            written_out = self._helper(statement)
            done += written_out if written_out else [self.visit(statement)]
        return done or [ast.Pass()]

    def visit_If(self, node: ast.If) -> ast.AST:
        orelse = self.statements(node.orelse) if node.orelse else []
        return ast.If(self.visit(node.test), self.statements(node.body), orelse)

    def visit_For(self, node: ast.For) -> ast.AST:
        target, iterator = self.visit(node.target), self.visit(node.iter)
        return ast.For(target, iterator, self.statements(node.body), [])

    def visit_While(self, node: ast.While) -> ast.AST:
        return ast.While(self.visit(node.test), self.statements(node.body), [])

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return float32_literal(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return float32_constant(node) or self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if getattr(node, "kept", False):
            return node
        if node.id in self.locals:
            return ast.Name(f"{self.prefix}__{node.id}", node.ctx)
        if node.id in self.scalars:
            return self.scalars[node.id].load()
        if node.id in self.rows:
            return self.rows[node.id].load()
        if node.id in self.constants:
            return expression(self.constants[node.id])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            row = self._row(node.args[0])
            if row is not None:
                return ast.Constant(row.size)
        call = self.generic_visit(node)
        assert isinstance(call, ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id in self.helpers:
            # Numba would compile the helper once more for each literal integer.
            call.args = [_plain_integer(argument) for argument in call.args]
        return call

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        row = self._row(node.value)
        if row is None or isinstance(node.slice, ast.Slice | ast.Tuple):
            return self.generic_visit(node)
        position = node.slice
        if isinstance(position, ast.UnaryOp) and isinstance(position.operand, ast.Constant):
            position = ast.Constant(ast.literal_eval(position))
        if isinstance(position, ast.Constant) and isinstance(position.value, int):
            offset = row.size if position.value < 0 else 0
            return row.item(ast.Constant(position.value + offset), node.ctx)
        if row.whole or self._never_negative(position):
            return row.item(self.visit(position), node.ctx)
        return ast.Subscript(row.load(), self.visit(position), node.ctx)

    def _row(self, node: ast.expr) -> Row | None:
        return self.rows.get(node.id) if isinstance(node, ast.Name) else None

    def _never_negative(self, node: ast.expr) -> bool:
        """Say whether an index counts from the front: loop counters, + * // %, max(0, ...)."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int) and node.value >= 0
        if isinstance(node, ast.Name):
            return node.id in self.counters
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "max":
            return any(self._never_negative(argument) for argument in node.args)
        if isinstance(node, ast.BinOp) and isinstance(
            node.op, ast.Add | ast.Mult | ast.FloorDiv | ast.Mod
        ):
            return self._never_negative(node.left) and self._never_negative(node.right)
        return False

    def _helper(self, statement: ast.stmt) -> list[ast.stmt]:
        """Write out a statement ``helper(row, ...)`` or ``x = helper(row, ...)``."""
        result = ""
        if isinstance(statement, ast.Expr):
            call: ast.AST = statement.value
        elif (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            call = statement.value
            result = self.visit(statement.targets[0]).id
        else:
            return []
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            return []
        helper = self.helpers.get(call.func.id)
        if helper is None or not any(self._row(a) for a in call.args):
            return []
        names = [a.arg for a in helper.definition.args.args]
        if len(names) != len(call.args):
            return []
        given: dict[str, Binding] = {}
        for name, argument in zip(names, call.args, strict=True):
            row = self._row(argument)
            given[name] = row if row else Scalar(ast.unparse(self.visit(argument)))
        prefix = f"{self.prefix}__{call.func.id}"
        try:
            lines = inline(helper, given, prefix=prefix, result=result)
        except NotInlinableError:
            return []
        return ast.parse("\n".join(lines)).body


def float32_literal(node: ast.Constant) -> ast.expr:
    """Wrap a float literal in ``f32(...)``: a bare 0.5 would promote the arithmetic to float64."""
    if isinstance(node.value, float):
        return ast.Call(ast.Name("f32", ast.Load()), [node], [])
    return node


def float32_constant(node: ast.Attribute) -> ast.expr | None:
    """Wrap ``math.pi`` and the like as a float literal; None for any other attribute."""
    is_module = isinstance(node.value, ast.Name) and node.value.id in ("math", "np", "numpy")
    if not is_module or node.attr not in ("pi", "e", "tau", "inf", "nan"):
        return None
    return ast.Call(ast.Name("f32", ast.Load()), [node], [])


def _num_nodes(body: list[ast.stmt]) -> int:
    return sum(1 for statement in body for _ in ast.walk(statement))


def _plain_integer(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Call(ast.Name("i64", ast.Load()), [node], [])
    return node


def _structured(body: list[ast.stmt], result: str, convert: str) -> list[ast.stmt]:
    """Turn ``return x`` into an assignment, and what follows an early one into an else."""
    done: list[ast.stmt] = []
    for position, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            if result and statement.value is not None:
                value = statement.value
                is_float = isinstance(value, ast.Constant) and isinstance(value.value, float)
                if convert and not (convert == "f32" and is_float):  # a literal gets it anyway
                    value = ast.Call(_kept(convert, ast.Load()), [value], [])
                done.append(ast.Assign([_kept(result, ast.Store())], value))
            return done
        if isinstance(statement, ast.If) and _returns([statement]):
            rest = body[position + 1 :]
            branches = []
            for branch in (statement.body, statement.orelse):
                tail = [] if _always_returns(branch) else copy.deepcopy(rest)
                branches.append(_structured([*branch, *tail], result, convert))
            done.append(ast.If(statement.test, branches[0] or [ast.Pass()], branches[1]))
            return done
        done.append(statement)
    return done


def _returns(body: list[ast.stmt]) -> bool:
    tree = ast.Module(body=list(body), type_ignores=[])
    return any(isinstance(node, ast.Return) for node in ast.walk(tree))


def _always_returns(body: list[ast.stmt]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    return isinstance(last, ast.Return)


def _gives_value(body: list[ast.stmt]) -> bool:
    tree = ast.Module(body=list(body), type_ignores=[])
    nothing = any(isinstance(n, ast.Return) and n.value is None for n in ast.walk(tree))
    return _always_returns(body) and not nothing


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _kept(name: str, context: ast.expr_context) -> ast.Name:
    """A name of the kernel itself, not to be taken for a local of the function."""
    node = ast.Name(name, context)
    node.kept = True  # type: ignore[attr-defined]
    return node
