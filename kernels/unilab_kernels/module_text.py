"""Puts the generated module together: imports, a table of the arrays, helpers and kernels."""

from __future__ import annotations

from collections.abc import Mapping

from . import jit
from .arrays import ARRAYS
from .bind import Binder
from .operands import Row
from .source import SourceCollector


def module_text(
    name: str,
    collector: SourceCollector,
    binder: Binder,
    slices: Mapping[str, slice],
    bodies: list[str],
) -> str:
    """Return the text of the module of a task.

    Args:
      name: of the task.
      collector: has the functions and globals that terms use.
      binder: has the places of constants, loaded and derived fields.
      slices: of the carried fields.
      bodies: the kernels.
    """
    arrays = [
        f"#   {array:21s} {shape:15s} {dtype}  {text}"
        for array, (shape, dtype, text) in ARRAYS.items()
    ]
    functions = collector.functions(bodies)
    head = [jit.PRELUDE.strip(), *collector.imports.values(), *collector.constants.values()]
    table = [
        "# The arrays (N envs, T substeps, A actions, O and C observations):",
        *arrays,
        "# Where rows are in the columns of",
        *_places(binder, slices),
    ]
    parts = [
        f'"""Kernels of the task \'{name}\', generated. Do not edit."""',
        "\n".join(head),
        "\n".join(table),
        *functions,
        *bodies,
    ]
    return "\n\n\n".join(parts) + "\n"


def _places(binder: Binder, slices: Mapping[str, slice]) -> list[str]:
    """Say, for the reader, which columns the rows of the packed arrays have."""
    rows: dict[str, list[str]] = {"fields_io": [], "scratch_io": [], "constants_in": []}
    for name, part in slices.items():
        rows["fields_io"].append(f"{name} {part.start}:{part.stop}")
    for array, bindings in (
        ("scratch_io", binder.scratch),
        ("constants_in", binder.constants_used),
    ):
        for name, place in bindings.items():
            if isinstance(place, Row):
                rows[array].append(f"{name} {place.start}:{place.start + place.size}")
    return [f"#   {array}: {', '.join(names) or 'none'}" for array, names in rows.items()]
