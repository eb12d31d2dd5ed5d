"""The envs that the NumPy baseline works on at a time, and the buffers that it works in.

Small vectors (base, feet, command) are held component by component, (k, m), so that every ufunc
runs over m numbers in a row. Joint vectors are held as they come, (m, k): they are wide enough to
fill a core's second-level cache, so they are worked on in parts of the batch, each a chunk with the
whole batch for a parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.draws import Draws
from unilab_kernels.spec import CarriedField, StateField

F32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
I64 = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """What a chunk knows of its task.

    Attributes:
      fields: name -> where it is in the physics' rows.
      carried, slices: name -> carried field, and its columns in ``fields_io``.
      constants: name -> number or (k,) f32.
      derived: name -> the function that fills a derived field from a chunk.
      wide: names of derived fields that are rows (m, k).
    """

    fields: Mapping[str, StateField]
    carried: Mapping[str, CarriedField]
    slices: Mapping[str, slice]
    constants: Mapping[str, float | F32]
    derived: Mapping[str, Callable[[Chunk], NDArray[Any]]]
    wide: frozenset[str]


class Chunk:
    """Up to `capacity` envs at work. `bind` moves it on to others. Serves one thread.

    Args:
      layout: of the task.
      draws: random numbers.
      capacity: rows of the buffers.
      parent: the chunk that this one works on a part of.

    Attributes:
      arrays: the kernels' per-env arrays, cut to the envs at work (or copies of their rows).
      ids: (m,) global env ids.
      m: how many envs.
      part: where they are among the parent's; all of them, without a parent.
      fresh: a new episode begins.
      terminated: (m,) bool; set before the rewards are computed.
    """

    def __init__(
        self, layout: Layout, draws: Draws, capacity: int, parent: Chunk | None = None
    ) -> None:
        self.layout, self.draws, self.capacity, self.parent = layout, draws, capacity, parent
        self.arrays: Arrays = {}
        self.ids: I64 = np.zeros(0, np.int64)
        self.m, self.fresh = 0, False
        self.terminated: Mask = np.zeros(0, np.bool_)
        self.part = slice(0, 0)
        self._buffers: dict[str, NDArray[Any]] = {}
        self._views: dict[str, NDArray[Any]] = {}  # of the buffers, cut to m
        self._loaded: dict[str, Any] = {}
        self._passing: set[str] = set()  # what of it depends on carried fields

    def bind(self, arrays: Arrays, ids: I64, *, fresh: bool = False) -> None:
        """Work on other envs."""
        if len(ids) != self.m:
            self._views.clear()
        self.arrays, self.ids, self.m, self.fresh = arrays, ids, len(ids), fresh
        self.part = slice(0, len(ids))
        self._loaded.clear()
        self._passing.clear()

    def parts(self, small: Chunk) -> Iterator[tuple[slice, Chunk]]:
        """Cut the envs at work into parts for a chunk that has this one for a parent.

        Yields:
          The part's place among the envs at work, and `small`, bound to it.
        """
        for start in range(0, self.m, small.capacity):
            part = slice(start, min(start + small.capacity, self.m))
            arrays = {name: array[part] for name, array in self.arrays.items()}
            small.bind(arrays, self.ids[part], fresh=self.fresh)
            small.part = part
            yield part, small

    # -- buffers: their content is whatever was there -------------------------------------------

    def vector(self, name: str, dtype: Any = np.float32) -> NDArray[Any]:
        """Return a buffer (m,) of this name."""
        view = self._views.get(name)
        return self._cut(name, (self.capacity,), dtype, 0) if view is None else view

    def stack(self, name: str, k: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Return a buffer (k, m), one row a component."""
        view = self._views.get(name)
        return self._cut(name, (k, self.capacity), dtype, 1) if view is None else view

    def matrix(self, name: str, k: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Return a buffer (m, k), one row an env."""
        view = self._views.get(name)
        return self._cut(name, (self.capacity, k), dtype, 0) if view is None else view

    def mask(self, name: str) -> Mask:
        """Return a buffer (m,) of booleans."""
        return self.vector(name, np.bool_)

    def tiled(self, name: str, row: NDArray[Any]) -> NDArray[Any]:
        """Return a constant row (k,) repeated for every env, (m, k).

        An operation on two whole arrays is one long loop; with a row for an operand it is m loops
        of k numbers.
        """
        view = self._views.get(name)
        if view is None:
            if name not in self._buffers:
                self._buffers[name] = np.tile(row, (self.capacity, 1))
            view = self._views[name] = self._buffers[name][: self.m]
        return view

    def ones(self, k: int) -> F32:
        """Return k ones: ``matrix @ ones`` is the quickest sum over rows."""
        if "ones" not in self._buffers or len(self._buffers["ones"]) < k:
            self._buffers["ones"] = np.ones(k, np.float32)
        return self._buffers["ones"][:k]

    def _cut(self, name: str, shape: tuple[int, ...], dtype: Any, axis: int) -> NDArray[Any]:
        if name not in self._buffers:
            self._buffers[name] = np.empty(shape, dtype)
        buffer = self._buffers[name]
        assert buffer.shape == shape, f"buffer '{name}' is used in two shapes"
        self._views[name] = buffer[: self.m] if axis == 0 else buffer[:, : self.m]
        return self._views[name]

    # -- what terms read, loaded or computed once -----------------------------------------------

    def columns(self, name: str) -> F32:
        """Return a field component by component, (k, m) f32."""
        if name not in self._loaded:
            if self.parent is not None:
                self._loaded[name] = self.parent.columns(name)[:, self.part]
            else:
                target = self._loaded[name] = self.stack(name, self.size(name))
                np.copyto(target, self._source(name).T, casting="same_kind")
        loaded: F32 = self._loaded[name]
        return loaded

    def rows(self, name: str) -> F32:
        """Return a field as rows, (m, k) f32."""
        key = f"{name}/rows"
        if key not in self._loaded:
            target = self._loaded[key] = self.matrix(key, self.size(name))
            np.copyto(target, self._source(name), casting="same_kind")
        loaded: F32 = self._loaded[key]
        return loaded

    def scalar(self, name: str) -> F32:
        """Return a field of one number, (m,) f32."""
        only: F32 = self.columns(name)[0]
        return only

    def derived(self, name: str) -> F32:
        """Return a derived field, (k, m), or (m, k) if it is wide."""
        return self.shared(name, self.layout.derived[name], wide=name in self.layout.wide)

    def shared(
        self,
        name: str,
        fill: Callable[[Chunk], NDArray[Any]],
        *,
        wide: bool = False,
        carried: bool = False,
    ) -> NDArray[Any]:
        """Return what several terms need alike.

        Args:
          name: of the result.
          fill: computes it.
          wide: it is rows (m, k), so it is computed part by part.
          carried: it depends on carried fields, so `forget` drops it.
        """
        if name not in self._loaded:
            if self.parent is not None and not wide:
                whole = self.parent.shared(name, fill, carried=carried)
                self._loaded[name] = whole[..., self.part]
            else:
                self._loaded[name] = fill(self)
            if carried:
                self._passing.add(name)
        result: NDArray[Any] = self._loaded[name]
        return result

    def carried(self, name: str) -> F32:
        """Return a carried field to read and write, (m, k), a view."""
        fields: F32 = self.arrays["fields_io"]
        return fields[:, self.layout.slices[name]]

    def forget(self) -> None:
        """Drop what was loaded of carried fields: they have changed."""
        for name in [*self._passing, *self.layout.slices]:
            self._loaded.pop(name, None)
            self._loaded.pop(f"{name}/rows", None)
        self._passing.clear()

    def constant(self, name: str) -> F32:
        """Return a constant (k,) f32 as tiled rows (m, k)."""
        return self.tiled(name, self.row_constant(name))

    def row_constant(self, name: str) -> F32:
        """Return a constant (k,) f32."""
        value = self.layout.constants[name]
        assert isinstance(value, np.ndarray)
        return value

    def number(self, name: str) -> float:
        """Return a constant that is one number."""
        value = self.layout.constants[name]
        assert isinstance(value, float)
        return value

    def size(self, name: str) -> int:
        """Return how many numbers a field has."""
        if name in self.layout.fields:
            return len(self.layout.fields[name].columns)
        return self.layout.carried[name].size

    def _source(self, name: str) -> NDArray[Any]:
        if name not in self.layout.fields:
            return self.carried(name)
        field = self.layout.fields[name]
        array = self.arrays["state_in" if field.source == "state" else "sensor_in"]
        columns = as_slice(field.columns)
        if field.source == "state" or field.reduce == "last":
            return array[:, -1, columns]
        peak: NDArray[Any] = np.maximum.reduce(array[:, :, columns], axis=1)
        return (peak > 0.0).astype(np.float32) if field.reduce == "any" else peak


def as_slice(columns: tuple[int, ...]) -> slice | list[int]:
    """Return the columns as a slice where they follow each other: a view rather than a copy."""
    if columns == tuple(range(columns[0], columns[0] + len(columns))):
        return slice(columns[0], columns[-1] + 1)
    return list(columns)
