"""Rewrites the statements of terms into fewer loops; what they compute stays the same.

A loop of a fixed, odd length, such as 29 joints, spends much of its time on the ends that do not
fill a vector register. One loop that does the work of several pays that once: the step kernel of
a 29-joint task gains 10 to 15 %.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

LEAST_LENGTH = 8  # shorter loops are unrolled anyway


def merge_loops(pieces: Sequence[list[str]], array: str = "") -> list[str]:
    """Return the statements of terms in a row, with loops of equal length made one.

    A piece takes part where it is: assignments, one loop of a fixed length, assignments; and where
    what comes up to its loop uses no name that another piece sets. The one loop stands where the
    first of them stood. What follows a loop stays where it was.

    Args:
      pieces: the lines of each term, perhaps with comments before the first statement.
      array: the array that they fill, each its own columns; "" for terms that write none. One that
        reads it stays as it is.
    """
    parsed = [ast.parse("\n".join(piece)).body for piece in pieces]
    stored = [_names(statements, ast.Store) for statements in parsed]
    groups: dict[int, list[int]] = {}
    for k, statements in enumerate(parsed):
        length = _length(statements, array)
        if length is not None and length >= LEAST_LENGTH:
            used = _names(statements[: _loop(statements) + 1], ast.Load, ast.Store)
            others = set().union(*(names for m, names in enumerate(stored) if m != k))
            if not used & others:
                groups.setdefault(length, []).append(k)
    lines: list[str] = []
    for k, piece in enumerate(pieces):
        group = next((g for g in groups.values() if len(g) > 1 and k in g), [])
        if not group:
            lines += piece
            continue
        if k == group[0]:
            for m in group:
                lines += [line for line in pieces[m] if line.startswith("#")]
            lines += _text(_one_loop([parsed[m] for m in group]))
        lines += _text(parsed[k][_loop(parsed[k]) + 1 :])
    return lines


def merge_into_loads(loads: list[str], pieces: Sequence[list[str]], array: str) -> list[str]:
    """Return loads followed by the pieces, with pieces that fit put into a load's loop.

    A piece fits where it is one loop as long as a load's loop that reads of ``array``, at its own
    position, only what that loop has written, and writes nothing else.

    Args:
      loads: the lines that copy columns into the array; their loops run over `j`.
      pieces: the lines of each term, perhaps with comments before the first statement.
      array: what both fill, each its own columns.
    """
    lines, rest = list(loads), []
    for piece in pieces:
        loop = _only_loop(piece)
        at = None if loop is None else _matching_load(lines, loop, array)
        if loop is None or at is None:
            rest += piece
            continue
        assert isinstance(loop.target, ast.Name)
        body = [f"{loop.target.id} = j", *_text(loop.body)]
        titles = [line for line in piece if line.startswith("#")]
        lines[at:at] = ["    " + line for line in (*titles, *body)]
    return [*lines, *rest]


def _only_loop(piece: list[str]) -> ast.For | None:
    """Return the loop of a piece that is one loop and nothing else."""
    match ast.parse("\n".join(piece)).body:
        case [ast.For(target=ast.Name(), orelse=[]) as loop]:
            bad = (ast.Break, ast.Continue, ast.For, ast.While, ast.Expr, ast.Attribute)
            inside = [node for statement in loop.body for node in ast.walk(statement)]
            return None if any(isinstance(node, bad) for node in inside) else loop
    return None


def _matching_load(lines: list[str], loop: ast.For, array: str) -> int | None:
    """Return the line behind the load's loop that a loop fits into."""
    head = f"for j in {ast.unparse(loop.iter)}:"
    if head not in lines:
        return None
    begin = lines.index(head)
    end = next((k for k in range(begin + 1, len(lines)) if lines[k][0] != " "), len(lines))
    host = ast.parse("\n".join(lines[begin:end])).body[0]
    written = _columns(host, array, ast.Store)
    read, stored = _columns(loop, array, ast.Load), _columns(loop, array, ast.Store)
    others = [n for n in ast.walk(loop) if isinstance(n, ast.Subscript) and not _is_item(n, array)]
    if written is None or read is None or not stored:
        return None
    if not read <= written or any(not isinstance(n.ctx, ast.Load) for n in others):
        return None
    return end


def _columns(loop: ast.stmt, array: str, context: type[ast.expr_context]) -> set[int] | None:
    """Return the c of all ``array[c + j]`` in a loop over j; None where there is another index."""
    assert isinstance(loop, ast.For)
    assert isinstance(loop.target, ast.Name)
    names, found = {loop.target.id}, set()
    for statement in loop.body:  # a loop that was put into this one gave its variable this one's
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=value)) if (
                value in names
            ):
                names.add(name)
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and _is_item(node.target, array):
            return None
        if isinstance(node, ast.Subscript) and _is_item(node, array):
            match node.slice:
                case ast.Name(id=name) if name in names:
                    column = 0
                case ast.BinOp(
                    left=ast.Constant(value=int(column)), op=ast.Add(), right=ast.Name(id=name)
                ) if name in names:
                    pass
                case _:
                    return None
            if isinstance(node.ctx, context):
                found.add(column)
    return found


def scale_stores(piece: list[str], array: str, factor: str) -> list[str] | None:
    """Return the statements with ``factor`` applied where they write ``array``, the one place.

    Args:
      piece: the lines of an observation term.
      array: name of the array that it fills.
      factor: an expression.

    Returns:
      None where the term reads the array or changes it in place: the factor must come afterwards.
    """
    module = ast.parse("\n".join(piece))
    stores = 0
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and _is_item(node.targets[0], array):
            if len(node.targets) > 1:
                return None
            node.value = ast.BinOp(ast.parse(factor, mode="eval").body, ast.Mult(), node.value)
            stores += 1
    mentions = sum(isinstance(n, ast.Name) and n.id == array for n in ast.walk(module))
    if mentions != stores:
        return None
    comments = [line for line in piece if line.startswith("#")]
    return [*comments, *_text(module.body)]


def _one_loop(pieces: Sequence[list[ast.stmt]]) -> list[ast.stmt]:
    """Return what comes before each loop, and one loop with the bodies of all."""
    before: list[ast.stmt] = []
    body: list[ast.stmt] = []
    first = pieces[0][_loop(pieces[0])]
    assert isinstance(first, ast.For)
    assert isinstance(first.target, ast.Name)
    for statements in pieces:
        at = _loop(statements)
        loop = statements[at]
        assert isinstance(loop, ast.For)
        before += statements[:at]
        if loop is not first:
            body.append(ast.Assign([loop.target], ast.Name(first.target.id, ast.Load())))
        body += loop.body
    return [*before, ast.For(first.target, first.iter, body, [])]


def _length(statements: list[ast.stmt], array: str) -> int | None:
    """Return how often the one loop of a piece runs; None where the piece is of another form."""
    if sum(isinstance(s, ast.For) for s in statements) != 1:
        return None
    for statement in statements:
        if not isinstance(statement, ast.For) and not _sets_names(statement):
            return None
    loop, stores = statements[_loop(statements)], 0
    assert isinstance(loop, ast.For)
    for node in ast.walk(loop):
        if isinstance(node, ast.Break | ast.Continue | ast.While | ast.Expr):
            return None
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            return None
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            return None
        if isinstance(node, ast.Subscript):
            writes = not isinstance(node.ctx, ast.Load)
            if writes and not _is_item(node, array):
                return None
            stores += writes
    if sum(isinstance(n, ast.Name) and n.id == array for n in ast.walk(loop)) != stores:
        return None
    match loop:
        case ast.For(
            target=ast.Name(),
            iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(length))]),
            orelse=[],
        ):
            return length
    return None


def _sets_names(statement: ast.stmt) -> bool:
    """Say whether a statement does nothing but set local variables."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    else:
        return False
    return all(
        isinstance(leaf, ast.Name | ast.Tuple | ast.Store)
        for target in targets
        for leaf in ast.walk(target)
    )


def _loop(statements: list[ast.stmt]) -> int:
    """Return where the loop of a piece is."""
    return next(k for k, s in enumerate(statements) if isinstance(s, ast.For))


def _is_item(node: ast.expr, array: str) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == array
    )


def _names(statements: Sequence[ast.stmt], *contexts: type[ast.expr_context]) -> set[str]:
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, contexts)
    }


def _text(statements: Sequence[ast.stmt]) -> list[str]:
    if not statements:
        return []
    module = ast.Module(body=list(statements), type_ignores=[])
    return ast.unparse(ast.fix_missing_locations(module)).split("\n")
