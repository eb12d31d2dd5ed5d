"""What each config key accepts and does, read from the models; and help with misspelt keys."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unilab.config.base import Section
from unilab.config.schema import RunConfig
from unilab.errors import nearest


@dataclass(frozen=True)
class Key:
    """One place in the config.

    Attributes:
      dotted: its name, such as "physics.num_envs".
      annotation: the type of the value.
      metadata: the bounds of the value.
      description: unit and effect in words; empty inside open mappings such as `rewards`.
      default: the schema's default; None where there is none.
      open_parent: True where the mapping around it takes any name (terms and their parameters).
    """

    dotted: str
    annotation: Any
    metadata: tuple[Any, ...]
    description: str
    default: Any
    open_parent: bool

    @property
    def is_section(self) -> bool:
        """True where the value is a block of declared keys."""
        return isinstance(self.annotation, type) and issubclass(self.annotation, Section)

    @property
    def is_mapping(self) -> bool:
        """True where the value is a block of declared keys or a mapping open to any name."""
        return self.is_section or get_origin(self.annotation) is dict

    @property
    def valid(self) -> str:
        """What the value may be, in words, such as "integer >= 1"."""
        return describe_type(self.annotation, self.metadata)


def find_key(path: Sequence[str]) -> Key | None:
    """Return the key at `path`, or None where the schema has no such place."""
    key: Key | None = Key("", RunConfig, (), "", None, False)
    for part in path:
        key = _step(key, part) if key is not None else None
    return key


def children(key: Key) -> list[str]:
    """Return the names declared inside a section; none for other keys."""
    return list(key.annotation.model_fields) if key.is_section else []


def all_keys() -> Iterator[Key]:
    """Yield every declared key that is not a section, in the order of the schema."""
    yield from _walk(Key("", RunConfig, (), "", None, False))


def suggest_key(path: Sequence[str]) -> str:
    """Return help with an unknown key: the near ones in its section, then anywhere, else a list."""
    parent = path[:-1]
    while parent and ((key := find_key(parent)) is None or not key.is_section):
        parent = parent[:-1]
    wrong = path[len(parent)]
    prefix = "".join(f"{part}." for part in parent)
    around = find_key(parent)
    siblings = children(around) if around is not None else []
    close = [prefix + n for n in difflib.get_close_matches(wrong, siblings, n=3, cutoff=0.6)]
    if not close or len(path) > len(parent) + 1:
        by_name: dict[str, list[str]] = {}
        for known in all_keys():
            by_name.setdefault(known.dotted.rpartition(".")[2], []).append(known.dotted)
        names = [known.dotted for known in all_keys()]
        close += difflib.get_close_matches(".".join(path), names, n=2, cutoff=0.75)
        for name in difflib.get_close_matches(path[-1], by_name, n=3, cutoff=0.75):
            close += by_name[name]
    if close:
        return "did you mean " + " or ".join(f"'{name}'" for name in dict.fromkeys(close)) + "?"
    return nearest(wrong, siblings)


def choices(annotation: Any) -> list[str]:
    """Return the words that a type accepts, such as "auto"; empty where it takes none."""
    if get_origin(annotation) is Literal:
        return [str(arg) for arg in get_args(annotation)]
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return [word for arg in get_args(annotation) for word in choices(arg)]
    return []


def describe_type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return what a type accepts, in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(args[0], [*_flat(args[1:]), *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(arg, metadata) for arg in args)
    if origin is Literal:
        return " | ".join(str(arg) for arg in args)
    if origin is tuple:
        item = describe_type(args[0])
        return f"list of ({item})" if " " in item else f"list of {item}s"
    if origin is dict:
        return "mapping of names"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping with the keys " + ", ".join(annotation.model_fields)
    pattern = next((p for m in metadata if (p := getattr(m, "pattern", None))), None)
    if pattern:
        return str(pattern).strip("^$").replace(r"\d+", "NUMBER")
    words = {bool: "true or false", int: "integer", float: "number", str: "text"}
    word = words.get(annotation, "null" if annotation is type(None) else "any value")
    return word + _bounds(metadata) if annotation in (int, float) else word


def _bounds(metadata: Sequence[Any]) -> str:
    signs = ((Ge, "ge", ">="), (Gt, "gt", ">"), (Le, "le", "<="), (Lt, "lt", "<"))
    found = [
        f"{sign} {getattr(item, name)}"
        for item in metadata
        for kind, name, sign in signs
        if isinstance(item, kind)
    ]
    return " " + " and ".join(found) if found else ""


def _flat(metadata: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for item in metadata:
        out.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return out


def _step(key: Key, part: str) -> Key | None:
    dotted = f"{key.dotted}.{part}" if key.dotted else part
    if key.is_section:
        info = key.annotation.model_fields.get(part)
        if info is None:
            return None
        annotation, metadata = _strip(info.annotation, info.metadata)
        default = None if info.is_required() else info.get_default()
        return Key(dotted, annotation, metadata, info.description or "", default, False)
    if get_origin(key.annotation) is dict:
        annotation, metadata = _strip(get_args(key.annotation)[1], ())
        return Key(dotted, annotation, metadata, "", None, True)
    if key.annotation is Any:  # inside learners.<name>.overrides
        return Key(dotted, Any, (), "", None, True)
    return None


def _strip(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    while get_origin(annotation) is Annotated:
        inner = get_args(annotation)
        annotation, metadata = inner[0], [*_flat(inner[1:]), *metadata]
    return annotation, tuple(metadata)


def _walk(key: Key) -> Iterator[Key]:
    for name in children(key):
        child = _step(key, name)
        assert child is not None
        if child.is_section:
            yield from _walk(child)
        else:
            yield child
