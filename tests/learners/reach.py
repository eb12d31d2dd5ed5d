"""What a learner is made of, to check that a saved state is complete."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def reachable(value: Any, path: str, scratch: Sequence[str]) -> dict[str, Any]:
    """Tensors, random streams and plain values reachable from an object, by path.

    Attributes named in `scratch` are left out.
    """
    return _walk(value, path, scratch, {}, set())


def _walk(
    value: Any, path: str, scratch: Sequence[str], found: dict[str, Any], seen: set[int]
) -> dict[str, Any]:
    if isinstance(value, Tensor):
        found[path] = value.detach()
    elif isinstance(value, torch.Generator):
        found[path] = value.get_state()
    elif isinstance(value, int | float | str | bool):
        found[path] = value
    elif id(value) in seen or (callable(value) and not hasattr(value, "__dict__")):
        return found
    elif isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            name = key if isinstance(key, str) else i
            _walk(item, f"{path}[{name}]", scratch, found, seen | {id(value)})
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _walk(item, f"{path}[{i}]", scratch, found, seen | {id(value)})
    elif hasattr(value, "__dict__"):
        for key, item in vars(value).items():
            if key not in scratch:
                _walk(item, f"{path}.{key}", scratch, found, seen | {id(value)})
    return found


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b
