"""Validation errors in the words of the person who wrote the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from unilab.config.describe import Key, choices, find_key, suggest_key
from unilab.errors import nearest

_SHOWN = 5


def explain_errors(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Return one line an error: where it was set, the key, what came, what is valid.

    Args:
      error: what the models said.
      origins: dotted key to the text that says where its value came from.
    """
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False):
        path, value = _place(item["loc"]), item["input"]
        if item["type"] == "extra_forbidden":
            while isinstance(value, Mapping) and value:
                name, value = next(iter(value.items()))
                path.append(str(name))
            text = f"unknown key; {suggest_key(path)}"
        elif item["type"] == "missing":
            text = "has no value; set it"
        elif item["type"] == "value_error":
            text = str(item["ctx"]["error"])
        else:
            key = find_key(path)
            assert key is not None
            text = f"got {_show(value, item['loc'], path)}; valid: {_valid(key, value)}"
        dotted = ".".join(path)
        where = [part for part in (_origin(dotted, origins), dotted) if part]
        lines.setdefault(dotted, ": ".join([*where, text]))
    shown = list(lines.values())[:_SHOWN]
    if len(lines) > _SHOWN:
        shown.append(f"... and {len(lines) - _SHOWN} more")
    return "\n".join(shown)


def _place(loc: tuple[int | str, ...]) -> list[str]:
    """Return the part of a location that is a key; list positions and types of a union go."""
    path: list[str] = []
    for part in loc:
        parent = find_key(path)
        if parent is None or not parent.is_mapping or not isinstance(part, str):
            break
        path.append(part)
    return path


def _origin(dotted: str, origins: Mapping[str, str]) -> str:
    if dotted in origins:
        return origins[dotted]
    inside = [text for key, text in origins.items() if key.startswith(dotted + ".")]
    return inside[0] if dotted and inside else ""


def _show(value: Any, loc: tuple[int | str, ...], path: list[str]) -> str:
    kinds = {bool: "true/false", int: "an integer", float: "a number", str: "text"}
    if value is None:
        shown = "null"
    else:
        kind = kinds.get(type(value))
        text = repr(value) if not isinstance(value, bool) else str(value).lower()
        shown = f"{text} ({kind})" if kind else text
    position = next((part for part in loc[len(path) :] if isinstance(part, int)), None)
    return shown if position is None else f"{shown} at position {position + 1}"


def _valid(key: Key, value: Any) -> str:
    near = nearest(value, choices(key.annotation)) if isinstance(value, str) else ""
    if near.startswith("did"):
        return f"{key.valid}; {near}"
    if key.annotation is str and isinstance(value, int | float) and key.valid == "text":
        return f"text (in quotes: '{value}')"
    return key.valid
