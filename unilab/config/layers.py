"""Layers of config values laid over each other, with the origin of every value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from unilab.config.describe import find_key
from unilab.errors import ConfigError, nearest

Origin = Callable[[str], str]


class Layers:
    """A nested mapping of values, and for each value in it where it came from.

    Attributes:
      values: nested dicts of plain values.
      origins: dotted key to origin, for every leaf of `values`.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def lay(
        self, path: Sequence[str], value: Any, origin: Origin, *, null_removes: bool = True
    ) -> None:
        """Lay `value` over what is at `path`. Mappings are merged, everything else is replaced.

        Args:
          path: parts of the dotted key; empty for the whole config.
          value: what to lay there.
          origin: dotted key to the text that says where its value comes from.
          null_removes: whether null takes a term out; otherwise it stands for an empty mapping.

        Raises:
          ConfigError: a term to be removed is not there.
        """
        if value is None and path and self._null(path, origin, null_removes):
            return
        target = self._parent(path)
        old = target.get(path[-1]) if path else self.values
        if isinstance(value, Mapping) and (value or isinstance(old, dict) or not path):
            if not isinstance(old, dict):
                self._forget(path)
                target[path[-1]] = {}
            elif value:
                self.origins.pop(".".join(path), None)
            for name, item in value.items():
                self.lay([*path, str(name)], item, origin, null_removes=null_removes)
            return
        self._forget(path)
        target[path[-1]] = copy.deepcopy(value)
        self.origins[".".join(path)] = origin(".".join(path))

    def replace(self, path: Sequence[str], value: Any, origin: Origin) -> None:
        """Set the key at `path` to exactly `value`; a section is laid over instead."""
        key = find_key(path)
        if isinstance(value, Mapping) and key is not None and not key.is_section:
            self._forget(path)
            self._parent(path).pop(path[-1], None)
        self.lay(path, value, origin)

    def _null(self, path: Sequence[str], origin: Origin, null_removes: bool) -> bool:
        """Deal with a null at `path`; return False where null is an ordinary value."""
        key = find_key(path)
        if key is None:
            return False
        if null_removes and key.open_parent:
            self._remove(path, origin)
        elif key.is_mapping and not null_removes:
            self.lay(path, {}, origin)
        elif key.is_mapping and not key.is_section:
            self._forget(path)
            self._parent(path).pop(path[-1], None)
            self.lay(path, {}, origin)
        else:
            return False
        return True

    def _remove(self, path: Sequence[str], origin: Origin) -> None:
        dotted, target = ".".join(path), self._parent(path)
        if path[-1] not in target:
            raise ConfigError(
                f"{origin(dotted)}: {dotted}=null removes '{path[-1]}', but it is not there; "
                f"{nearest(path[-1], target)}"
            )
        self._forget(path)
        del target[path[-1]]
        if not target:
            self.origins[".".join(path[:-1])] = origin(dotted)

    def _parent(self, path: Sequence[str]) -> dict[str, Any]:
        """Return the mapping that holds `path`, making the mappings on the way."""
        target = self.values
        for depth, part in enumerate(path[:-1], start=1):
            if not isinstance(target.get(part), dict):
                self._forget(path[:depth])
                target[part] = {}
            else:
                self.origins.pop(".".join(path[:depth]), None)
            target = target[part]
        return target

    def _forget(self, path: Sequence[str]) -> None:
        """Drop the origins of `path` and of everything inside it."""
        dotted = ".".join(path)
        for known in [k for k in self.origins if k == dotted or k.startswith(dotted + ".")]:
            del self.origins[known]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every value that is not a non-empty mapping."""
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, dotted + ".")
        else:
            yield dotted, value
