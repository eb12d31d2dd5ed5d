"""What the names in a term stand for: its arguments, and the globals of its file."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scalar:
    """An argument that is a number.

    Attributes:
      text: the expression that reads it.
      lazy: evaluate it where it is used, rather than once before.
    """

    text: str
    lazy: bool = False

    def load(self) -> ast.expr:
        """Return the expression."""
        return expression(self.text)


@dataclass(frozen=True)
class Row:
    """An argument that is a row of numbers inside a larger array.

    Attributes:
      array: name of the array.
      index: text of the index of the row in a 2-D array; "" where the array is 1-D.
      start: where the row starts in the last axis.
      size: its length.
      whole: it is the whole last axis.
    """

    array: str
    index: str
    start: int
    size: int
    whole: bool = False

    def load(self) -> ast.expr:
        """Return an expression for a view of the row."""
        end = ":" if self.whole else f"{self.start}:{self.start + self.size}"
        return expression(f"{self.array}[{self.index + ', ' if self.index else ''}{end}]")

    def item(self, position: ast.expr, context: ast.expr_context) -> ast.expr:
        """Return an expression for one number of the row."""
        if self.start == 0:
            place = position
        elif isinstance(position, ast.Constant):
            place = ast.Constant(self.start + position.value)  # type: ignore[operator]
        else:
            place = ast.BinOp(ast.Constant(self.start), ast.Add(), position)
        if self.index:
            place = ast.Tuple([expression(self.index), place], ast.Load())
        return ast.Subscript(ast.Name(self.array, ast.Load()), place, context)


Binding = Scalar | Row


@dataclass(frozen=True)
class Parsed:
    """A function taken apart.

    Attributes:
      definition: its syntax tree.
      constants: global numbers that it uses -> expression.
      helpers: global functions that it calls.
    """

    definition: ast.FunctionDef
    constants: Mapping[str, str]
    helpers: Mapping[str, Parsed]


def expression(text: str) -> ast.expr:
    """Parse an expression."""
    return ast.parse(text, mode="eval").body
