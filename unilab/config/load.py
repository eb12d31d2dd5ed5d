"""From a task name and `key=value` arguments to one checked config, with the origin of each value.

Order, the later wins: schema default, the task's YAML file, `learners.<chosen>.overrides` in that
file, what `unilab tune` measured on this machine (where the caller asks for it), the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from unilab.config.base import to_plain
from unilab.config.layers import Layers, Origin, leaves
from unilab.config.locate import TaskFiles, locate_task, task_label
from unilab.config.overrides import (
    COMMAND_LINE,
    Override,
    looks_like_key,
    missing_equals,
    parse_overrides,
)
from unilab.config.report import explain_errors
from unilab.config.schema import LearnersConfig, RunConfig
from unilab.config.tuned import NUM_ENVS, Machine, Tuned, find_tuned
from unilab.config.yaml_io import read_mapping, write_mapping
from unilab.errors import ConfigError, nearest

DEFAULT = "default"


@dataclass(frozen=True)
class LoadedConfig:
    """A config and where each value of it came from.

    Attributes:
      config: the checked config.
      origins: dotted key to "default", "configs/go1_walk.yaml:12", "learners.ppo.overrides
        (configs/go1_walk.yaml:40)", "tuned on this machine, FILE" or "command line", for every
        leaf of `config`.
      notes: lines for the user: whether settings tuned on this machine are used.
    """

    config: RunConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def with_value(self, key: str, value: object, origin: str) -> LoadedConfig:
        """Return a copy in which the dotted `key` has another value, checked like any other.

        Raises:
          ConfigError: the value does not fit.
        """
        layers = Layers()
        known = self.origins
        layers.lay([], to_plain(self.config), lambda k: known.get(k, DEFAULT), null_removes=False)
        layers.replace(key.split("."), value, lambda _: origin)
        return replace(_finish(layers), notes=self.notes)


class Difference(NamedTuple):
    """A value that differs between two configs; None where one has no such key."""

    key: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.first!r} -> {self.second!r}"


@dataclass(frozen=True)
class _Sources:
    """What a config is put together from, read and parsed."""

    files: TaskFiles
    values: Mapping[str, Any]
    lines: Mapping[str, int]
    overrides: Sequence[Override]

    def combine(self, tuned: Tuned | None = None) -> LoadedConfig:
        """Lay everything over each other in order, and check it."""
        in_file = _file_origin(self.files.shown, self.lines)
        layers = Layers()
        layers.lay([], self.values, in_file, null_removes=False)
        layers.lay(["task"], self.files.task, lambda _: COMMAND_LINE)
        chosen = next((o.value for o in reversed(self.overrides) if o.path == ("learner",)), None)
        _lay_learner(layers, chosen, in_file)
        _resolve_model(layers, self.files.config_path.parent)
        if tuned is not None:
            layers.lay([], tuned.settings, lambda _: f"tuned on this machine, {tuned.path}")
        for path, value in self.overrides:
            layers.replace(path, value, lambda _: COMMAND_LINE)
        _resolve_model(layers, Path())
        return _finish(layers)


def load_config(
    task: str, overrides: Sequence[str] = (), *, machine: Machine | None = None
) -> LoadedConfig:
    """Load the config of a task.

    Args:
      task: a task name, or the path of a .py task file with a .yaml of the same name beside it.
      overrides: `key=value` arguments, such as ["physics.num_envs=8", "rewards.slip=null"].
      machine: lay what `unilab tune` measured on this machine over the task's file, where it
        holds for this run; the result's notes say so. None uses nothing that was measured.

    Raises:
      ConfigError: anything in it is not right; the message names the key, what came, what is valid.
    """
    sources = _read_sources(task, overrides)
    plain = sources.combine()
    found = None if machine is None else find_tuned(sources.files.task, machine)
    if found is None or isinstance(found, str):
        return plain if found is None else replace(plain, notes=(found,))
    return _lay_tuned(sources, plain, found)


def _read_sources(task: str, overrides: Sequence[str]) -> _Sources:
    if "=" in task:
        raise ConfigError(
            f"{COMMAND_LINE}: the task is missing before '{task}'; write: unilab train TASK {task}"
        )
    try:
        files = locate_task(task)
    except ConfigError:
        if looks_like_key(task):
            raise missing_equals([task, *overrides], 0) from None
        raise
    parsed = parse_overrides(overrides)
    values, lines = read_mapping(files.config_path, files.shown)
    _check_task_key(values, files, lines)
    return _Sources(files, values, lines, parsed)


def _lay_tuned(sources: _Sources, plain: LoadedConfig, found: Tuned) -> LoadedConfig:
    """Return the config with measured settings, or without where they do not hold for this run."""
    again = f"`unilab tune {task_label(plain.config.task)}`"
    try:
        loaded = sources.combine(found)
    except ConfigError as error:
        return replace(
            plain, notes=(f"{found.path} does not fit and is not used: {error}; {again} helps",)
        )
    reason = found.mismatch(loaded.config)
    if reason:
        num_envs = plain.config.physics.num_envs
        if found.tuned_for.get(NUM_ENVS) != num_envs:
            again = f"`unilab tune {task_label(plain.config.task)} {NUM_ENVS}={num_envs}`"
        return replace(plain, notes=(f"{found.path} is not used: {reason}; {again} measures anew",))
    text = f"thread settings measured on this machine are used ({found.path}, {found.written})"
    if loaded.origins[NUM_ENVS].startswith("tuned"):
        text += f", {NUM_ENVS}={loaded.config.physics.num_envs} among them"
    return replace(loaded, notes=(f"{text}; --no-tuned leaves them out",))


def load_resolved(path: Path | str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Load a config saved by `save_resolved`, with further overrides laid over it.

    `learners.<chosen>.overrides` are in the saved values already and are not laid again.

    Raises:
      ConfigError: the file is missing or not right, or an override is not.
    """
    path = Path(path)
    values, lines = read_mapping(path, str(path))
    layers = Layers()
    layers.lay([], values, _file_origin(str(path), lines), null_removes=False)
    for key, value in parse_overrides(overrides):
        if key == ("learner",) and value != values.get("learner"):
            raise ConfigError(
                f"{COMMAND_LINE}: learner={value} cannot replace the run's "
                f"learner={values.get('learner')}; start a new run for another learner"
            )
        layers.replace(key, value, lambda _: COMMAND_LINE)
    _resolve_model(layers, Path())
    return _finish(layers)


def save_resolved(config: RunConfig, path: Path | str) -> None:
    """Write every value of `config` as YAML; `load_resolved` gives an equal config back."""
    write_mapping(Path(path), to_plain(config))


def diff_configs(first: RunConfig, second: RunConfig) -> list[Difference]:
    """Return every dotted key whose value differs; str() of one reads "key: 0.25 -> 0.5"."""
    a, b = dict(leaves(to_plain(first))), dict(leaves(to_plain(second)))
    return [
        Difference(key, a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key) or (key in a) != (key in b)
    ]


def _finish(layers: Layers) -> LoadedConfig:
    try:
        config = RunConfig.model_validate(layers.values)
    except ValidationError as error:
        raise ConfigError(explain_errors(error, layers.origins)) from None
    origins = {key: layers.origins.get(key, DEFAULT) for key, _ in leaves(to_plain(config))}
    return LoadedConfig(config, origins)


def _resolve_model(layers: Layers, folder: Path) -> None:
    """Make a relative `physics.model` absolute, so that a saved config holds in every folder."""
    physics = layers.values.get("physics")
    model = physics.get("model") if isinstance(physics, dict) else None
    if isinstance(physics, dict) and isinstance(model, str) and model:
        physics["model"] = str((folder / Path(model).expanduser()).absolute())


def _lay_learner(layers: Layers, chosen: object, in_file: Origin) -> None:
    """Lay the overrides of the learner in use over the file's values."""
    name = chosen if chosen is not None else layers.values.get("learner", _default_learner())
    if name not in LearnersConfig.model_fields:
        origin = COMMAND_LINE if chosen is not None else in_file("learner")
        raise ConfigError(
            f"{origin}: learner: got {name!r}; {nearest(str(name), LearnersConfig.model_fields)}"
        )
    block = f"learners.{name}.overrides"
    learners = layers.values.get("learners")
    settings = learners.get(name) if isinstance(learners, dict) else None
    overlay = settings.get("overrides") if isinstance(settings, dict) else None
    if overlay is None:
        return
    if not isinstance(overlay, dict):
        raise ConfigError(
            f"{in_file(block)}: {block}: got {overlay!r}; valid: blocks of the config, such as "
            "{physics: {num_envs: 2048}}"
        )
    for key in ("task", "learner", "learners", "description"):
        if key in overlay:
            raise ConfigError(
                f"{in_file(f'{block}.{key}')}: {block}.{key} is not allowed; valid: any other "
                "top-level block"
            )
    layers.lay([], overlay, _inside(block, in_file))


def _file_origin(shown: str, lines: Mapping[str, int]) -> Origin:
    return lambda dotted: f"{shown}:{lines[dotted]}" if dotted in lines else shown


def _inside(block: str, in_file: Origin) -> Origin:
    def origin(dotted: str) -> str:
        return f"{block} ({in_file(f'{block}.{dotted}')})"

    return origin


def _default_learner() -> str:
    return str(RunConfig.model_fields["learner"].default)


def _check_task_key(values: Mapping[str, Any], files: TaskFiles, lines: Mapping[str, int]) -> None:
    given, label = values.get("task"), task_label(files.task)
    if given is not None and given != label:
        raise ConfigError(
            f"{files.shown}:{lines['task']}: task: got {given!r}; valid: {label!r}, the name of "
            "the file, or leave the key out"
        )
