"""Collects the source of terms, and of whatever they call, into one self-contained module text.

The generated kernel contains every line that it runs. So a person can read it, and Numba's on-disk
cache, which ignores edits in imported files, is keyed by all of them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .terms import TermError


class _Float32Literals(ast.NodeTransformer):
    """Wrap float literals in ``f32(...)``: a bare 0.5 would promote the arithmetic to float64."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:  # noqa: N802
        if isinstance(node.value, float):
            return ast.Call(func=ast.Name(id="f32", ctx=ast.Load()), args=[node], keywords=[])
        return node


class SourceCollector:
    """Gathers functions in dependency order; each is written once.

    Attributes:
      imports: module imports needed, as source lines.
      constants: number constants needed, as source lines.
      functions: decorated function definitions, helpers before their callers.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.functions: list[str] = []
        self._seen: dict[str, Callable[..., Any]] = {}

    def add(self, function: Callable[..., Any], name: str, *, is_term: bool = False) -> str:
        """Add `function` under `name` and return the name. Defaults of a term are dropped.

        Raises:
          TermError: two different functions claim one name, or a global cannot be written out.
        """
        known = self._seen.get(name)
        if known is not None:
            if known is not function:
                raise TermError(
                    f"two different functions are called '{name}': in "
                    f"{known.__code__.co_filename} and {function.__code__.co_filename}; rename one"
                )
            return name
        self._seen[name] = function
        definition = _parse(function)
        for used in sorted(_global_names(definition)):
            self._add_global(function, used)
        definition.name = name
        definition.decorator_list = []
        definition.returns = None
        first = definition.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            definition.body[0] = ast.Expr(ast.Constant(str(first.value.value).split("\n")[0]))
        for argument in definition.args.args:
            argument.annotation = None
        if is_term:  # the kernel passes every argument
            definition.args.defaults = []
        tree = ast.fix_missing_locations(_Float32Literals().visit(definition))
        self.functions.append('@njit(inline="always")\n' + ast.unparse(tree))
        return name

    def _add_global(self, function: Callable[..., Any], used: str) -> None:
        value = getattr(function, "__globals__", {}).get(used, _MISSING)
        if value is _MISSING:  # a builtin such as range or min
            return
        value = getattr(value, "py_func", value)  # a function the user jitted himself
        if isinstance(value, types.ModuleType):
            self.imports[used] = f"import {value.__name__} as {used}"
        elif isinstance(value, types.FunctionType):
            self.add(value, used)
        elif isinstance(value, np.generic):
            line = f"{used} = np.{value.dtype.name}({value.item()!r})"
            self._add_constant(used, line, function)
        elif isinstance(value, bool | int):
            self._add_constant(used, f"{used} = {value!r}", function)
        elif isinstance(value, float):
            self._add_constant(used, f"{used} = np.float32({value!r})", function)
        else:
            raise TermError(
                f"'{function.__name__}' in {function.__code__.co_filename} uses the global "
                f"'{used}' of type {type(value).__name__}; a term may use modules, functions and "
                "numbers. Declare an array as a constant of the task instead"
            )

    def _add_constant(self, name: str, line: str, function: Callable[..., Any]) -> None:
        if self.constants.setdefault(name, line) != line:
            raise TermError(
                f"two different constants are called '{name}' (one used by "
                f"'{function.__name__}'); rename one"
            )


_MISSING = object()


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
    loaded: set[str] = set()
    stored = {argument.arg for argument in definition.args.args}
    for node in ast.walk(ast.Module(body=list(definition.body), type_ignores=[])):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
    return loaded - stored
