"""Collects the source of terms, and of whatever they call, into one self-contained module text.

The generated kernel contains every line that it runs. So a person can read it, and Numba's on-disk
cache, which ignores edits in imported files, is keyed by all of them.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import math
import re
import textwrap
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .inline import float32_constant, float32_literal
from .operands import Parsed
from .terms import TermError


class SourceCollector:
    """Gathers functions in dependency order; each is written once.

    Attributes:
      imports: module imports needed, as source lines by name.
      constants: number constants needed, as source lines by name.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self._functions: dict[str, str] = {}  # name -> decorated definition
        self._seen: dict[str, tuple[Callable[..., Any], Parsed]] = {}

    def add(self, function: Callable[..., Any], name: str, *, is_term: bool = False) -> Parsed:
        """Add `function` under `name`. Defaults of a term are dropped: the kernel passes all.

        Raises:
          TermError: two different functions claim one name, or a global cannot be written out.
        """
        known = self._seen.get(name)
        if known is not None:
            if known[0] is not function:
                raise TermError(
                    f"two different functions are called '{name}': in "
                    f"{known[0].__code__.co_filename} and {function.__code__.co_filename}; "
                    "rename one"
                )
            return known[1]
        if function.__code__.co_freevars:
            raise TermError(
                f"'{function.__name__}' in {function.__code__.co_filename} uses "
                f"'{function.__code__.co_freevars[0]}' of the function around it; define both at "
                "the top of the file"
            )
        definition = _parse(function)
        parsed = Parsed(definition, {}, {})
        self._seen[name] = (function, parsed)
        constants: dict[str, str] = {}
        helpers: dict[str, Parsed] = {}
        for used in sorted(_global_names(definition)):
            self._add_global(function, used, constants, helpers)
        parsed = Parsed(definition, constants, helpers)
        self._seen[name] = (function, parsed)
        self._functions[name] = _definition_text(definition, name, is_term=is_term)
        return parsed

    def functions(self, bodies: list[str]) -> list[str]:
        """Return the definitions that `bodies` call, directly or not, helpers before callers.

        Raises:
          TermError: a function has the name of a variable of the kernel.
        """
        taken = {name for body in bodies for name in _stored_names(ast.parse(body))}
        for name in [*self._functions, *self.imports]:
            if name in taken:
                raise TermError(f"'{name}' is also a variable of the kernel; rename the function")
        kept: list[str] = []
        for name, text in reversed(self._functions.items()):
            if any(re.search(rf"\b{name}\b", other) for other in [*bodies, *kept]):
                kept.append(text)
        return kept[::-1]

    def _add_global(
        self,
        function: Callable[..., Any],
        used: str,
        constants: dict[str, str],
        helpers: dict[str, Parsed],
    ) -> None:
        value = getattr(function, "__globals__", {}).get(used, _MISSING)
        if value is _MISSING:
            if hasattr(builtins, used):  # such as range or min
                return
            raise TermError(
                f"'{function.__name__}' in {function.__code__.co_filename} uses '{used}', which is "
                "neither an argument, nor set in it, nor defined in its file"
            )
        value = getattr(value, "py_func", value)  # a function the user jitted himself
        if isinstance(value, types.ModuleType):
            self._add_line(self.imports, used, f"import {value.__name__} as {used}", function)
        elif isinstance(value, types.BuiltinFunctionType | np.ufunc | type) and (
            hasattr(value, "__name__") and _home(value) in ("math", "numpy")
        ):
            line = f"from {_home(value)} import {value.__name__} as {used}"
            self._add_line(self.imports, used, line, function)
        elif isinstance(value, types.FunctionType):
            helpers[used] = self.add(value, used)
        elif isinstance(value, np.generic | bool | int | float):
            constants[used] = _number_text(value)
            self._add_line(self.constants, used, f"{used} = {constants[used]}", function)
        else:
            raise TermError(
                f"'{function.__name__}' in {function.__code__.co_filename} uses the global "
                f"'{used}' of type {type(value).__name__}; a term may use modules, functions and "
                "numbers. Declare an array as a constant of the task instead"
            )

    def _add_line(
        self, lines: dict[str, str], name: str, line: str, function: Callable[..., Any]
    ) -> None:
        if lines.setdefault(name, line) != line:
            raise TermError(
                f"two different globals are called '{name}' (one used by "
                f"'{function.__name__}'); rename one"
            )


_MISSING = object()


def _home(value: Any) -> str | None:
    """Return the module to import a function or type from."""
    return "numpy" if isinstance(value, np.ufunc) else getattr(value, "__module__", None)


class _Float32Literals(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return float32_literal(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return float32_constant(node) or self.generic_visit(node)


def _definition_text(definition: ast.FunctionDef, name: str, *, is_term: bool) -> str:
    definition = copy.deepcopy(definition)
    definition.name = name
    definition.decorator_list = []
    definition.returns = None
    first = definition.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        definition.body[0] = ast.Expr(ast.Constant(str(first.value.value).split("\n")[0]))
    for argument in definition.args.args:
        argument.annotation = None
    if is_term:
        definition.args.defaults = []
    tree = ast.fix_missing_locations(_Float32Literals().visit(definition))
    decorator = '@njit(inline="always")' if is_term else "@njit(**_HELPER)"
    return f"{decorator}\n{ast.unparse(tree)}"


def _number_text(value: np.generic | bool | int | float) -> str:
    if isinstance(value, np.generic):
        return f"np.{value.dtype.name}({value.item()!r})"
    if isinstance(value, bool | int):
        return repr(value)
    return f"np.float32({value!r})" if math.isfinite(value) else f"np.float32(float('{value}'))"


def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise TermError(f"the source of '{function.__name__}' cannot be read: {error}") from error
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise TermError(f"'{function.__name__}' must be a plain function (def)")
    return node


def _global_names(definition: ast.FunctionDef) -> set[str]:
    names = {
        node.id
        for statement in definition.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return names - _stored_names(definition) - {a.arg for a in definition.args.args}


def _stored_names(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
