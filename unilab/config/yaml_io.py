"""YAML 1.2 in and out: values with the line of every key, and files that appear whole."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from unilab.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_]\w*")


def parse_value(text: str) -> Any:
    """Return the value that `text` stands for in YAML 1.2.

    Raises:
      ValueError: the text is not YAML; the message is one line.
    """
    try:
        return _yaml().load(text)
    except (YAMLError, ValueError) as error:
        raise ValueError(_problem(error)) from None


def read_mapping(path: Path, shown: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a config file.

    Args:
      path: the file.
      shown: its name in messages.

    Returns:
      The nested values, and the line (from 1) of every dotted key.

    Raises:
      ConfigError: the file cannot be read, is not YAML, holds a key twice, is not a mapping, or
        has a key that is not a name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown}: the config file cannot be read: {error}") from None
    try:
        node, values = _yaml().compose(io.StringIO(text)), _yaml().load(text)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{shown}{line}: not valid YAML: {_problem(error)}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{shown}: not valid YAML: {_problem(error)}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{shown}: the file holds a {type(values).__name__}; valid: 'key: value' lines"
        )
    lines: dict[str, int] = {}
    _collect_lines(node, "", lines)
    _check_names(values, "", lines, shown)
    return values, lines


def write_mapping(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values` (dicts, lists, scalars) as YAML 1.2, in order. The file appears whole."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    yaml.width = 100_000
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        yaml.dump(dict(values), file)
    os.replace(partial, path)


def _yaml() -> Any:
    return YAML(typ="safe", pure=True)  # the C loader reads YAML 1.1: `on` is true, 1e-3 is text


def _collect_lines(node: Node | None, prefix: str, lines: dict[str, int]) -> None:
    if not isinstance(node, MappingNode):
        return
    for key, value in node.value:
        dotted = f"{prefix}{key.value}"
        lines.setdefault(dotted, key.start_mark.line + 1)
        _collect_lines(value, dotted + ".", lines)


def _check_names(values: Mapping[Any, Any], prefix: str, lines: dict[str, int], shown: str) -> None:
    for name, value in values.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            line = lines.get(f"{prefix}{name}")
            where = f"{shown}:{line}" if line else shown
            hint = ""
            if isinstance(name, str) and "." in name:
                hint = "; in a file, write a dotted key as nested blocks"
            raise ConfigError(
                f"{where}: {prefix}{name}: the key {name!r} is not a name; valid: letters, digits "
                f"and _{hint}"
            )
        # thresholds are named by metrics, such as episode/return
        if isinstance(value, dict) and not f"{prefix}{name}".endswith("evaluation.thresholds"):
            _check_names(value, f"{prefix}{name}.", lines, shown)


def _problem(error: Exception) -> str:
    """Return what a YAML error says, in one line."""
    if isinstance(error, MarkedYAMLError):
        parts = [error.problem or error.context or ""]
        return " ".join(str(parts[0]).split("\n")[0].split())
    return str(error).split("\n")[0]
