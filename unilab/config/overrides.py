"""The one grammar of `key=value` on every command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from unilab.config.describe import children, find_key, suggest_key
from unilab.config.yaml_io import parse_value
from unilab.errors import ConfigError

COMMAND_LINE = "command line"
# The last part may be a metric, such as evaluation.thresholds.episode/return.
_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_][\w/]*)*")


class Override(NamedTuple):
    """One `key=value`: the parts of the dotted key and the value, parsed as YAML 1.2."""

    path: tuple[str, ...]
    value: Any


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse `key=value` arguments.

    Args:
      arguments: as they came from the shell, such as ["physics.num_envs=8", "device=cpu"].

    Returns:
      The overrides in the order given; of two for one key the later wins.

    Raises:
      ConfigError: an argument is not key=value, its key is unknown, or its value is not YAML.
    """
    return [_parse(list(arguments), position) for position in range(len(arguments))]


def looks_like_key(word: str) -> bool:
    """Return whether a word in the place of the task is rather a config key, as in `a.b 5.0`."""
    head, dot, _ = word.partition(".")
    return bool(dot) and head.isidentifier() and not word.endswith((".py", ".yaml", ".yml"))


def missing_equals(arguments: Sequence[str], position: int) -> ConfigError:
    """Return the error for an argument that is not key=value, saying what arrived."""
    argument = arguments[position]
    key = argument.split("=")[0].strip().lstrip("-+~")
    rest = [a for a in arguments[position + 1 :] if a != "="]
    value = argument.partition("=")[2].strip() or (rest[0].strip() if rest else "")
    if not value or (rest and value == rest[0] and "=" in value):
        value = "VALUE"
    example = f"{key if _KEY.fullmatch(key) else 'key'}={value}"
    lines = [
        f"{COMMAND_LINE}: '{argument}' is not of the form key=value; arrived: "
        f"{shlex.join(arguments)}",
        f'  write it as one argument: {example}   in quotes where a shell drops the "=": '
        f'"{example}"',
    ]
    if _KEY.fullmatch(key) and find_key(key.split(".")) is None:
        lines.append(f"  and '{key}' is not a config key; {suggest_key(key.split('.'))}")
    return ConfigError("\n".join(lines))


def _parse(arguments: list[str], position: int) -> Override:
    argument = arguments[position]
    key, equals, text = argument.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise missing_equals(arguments, position)
    path = tuple(key.split("."))
    _check_key(path)
    if not text.strip():
        raise ConfigError(
            f"{COMMAND_LINE}: {key}= has no value; write {key}=VALUE without spaces around '=', "
            f"or {key}=null for no value"
        )
    try:
        return Override(path, parse_value(text))
    except ValueError as error:
        raise ConfigError(
            f"{COMMAND_LINE}: {key}={text}: the value is not valid YAML ({error}); quote text "
            f"that holds special characters, such as \"{key}='a: b'\""
        ) from None


def _check_key(path: tuple[str, ...]) -> None:
    key = ".".join(path)
    if path == ("task",):
        raise ConfigError(
            f"{COMMAND_LINE}: the task is the first argument, not a key: unilab train TASK"
        )
    if len(path) > 2 and path[0] == "learners" and path[2] == "overrides":
        inner = ".".join(path[3:]) or "physics.num_envs"
        raise ConfigError(
            f"{COMMAND_LINE}: {key} cannot be set here; the command line wins over it anyway, so "
            f"set the key itself: {inner}=VALUE"
        )
    found = find_key(path)
    if found is None:
        raise ConfigError(f"{COMMAND_LINE}: {key}: unknown key; {suggest_key(path)}")
    if found.is_section:
        names = ", ".join(f"{key}.{name}" for name in children(found))
        raise ConfigError(f"{COMMAND_LINE}: {key} is a block of keys; set one of them: {names}")
