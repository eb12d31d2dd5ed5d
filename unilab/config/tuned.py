"""Settings that `unilab tune` measured on this machine: where they are kept, and when they hold.

One file a task and machine, outside the package and outside the task's YAML:
`<config folder>/tuned/<task>/<machine>.yaml`. A file holds for the processor, CPUs and GPU that it
was measured on, and for the number of envs; whatever else it finds is left unused, with a line that
says why.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab.config.describe import find_key
from unilab.config.layers import leaves
from unilab.config.locate import task_label
from unilab.config.schema import RunConfig
from unilab.config.yaml_io import read_mapping, write_mapping
from unilab.errors import ConfigError, nearest

FOLDER_VARIABLE = "UNILAB_CONFIG_DIR"
OFF_VARIABLE = "UNILAB_NO_TUNED"
RUNTIME_KEYS = (
    "runtime.threads",
    "runtime.shards",
    "runtime.threads_per_shard",
    "runtime.groups",
    "runtime.overlap",
    "runtime.learner_threads",
)
NUM_ENVS = "physics.num_envs"
_ABOUT = (
    "Written by `unilab tune`. `unilab train` and `unilab explain` lay `settings` over the task's "
    "file; --no-tuned leaves them out. Delete this file to be rid of them."
)
_MACHINE_KEYS = ("cpu", "cpus", "gpu")


@dataclass(frozen=True)
class Machine:
    """What measured settings depend on.

    Attributes:
      cpu: model of the processor.
      cpus: CPUs that this process may use.
      gpu: model of the first GPU; None where there is none.
    """

    cpu: str
    cpus: int
    gpu: str | None

    def describe(self) -> str:
        """Return the machine in words."""
        return f"{self.cpu}, {self.cpus} CPU(s), {self.gpu or 'no GPU'}"

    @property
    def file_name(self) -> str:
        """Name of this machine's files: readable, and different for every other machine."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.gpu or ''}".lower()).strip("-")
        digest = hashlib.sha256(repr((self.cpu, self.cpus, self.gpu)).encode()).hexdigest()[:8]
        return f"{words[:48].strip('-')}-{self.cpus}cpu-{digest}.yaml"


@dataclass(frozen=True)
class Tuned:
    """A file of measured settings.

    Attributes:
      path: the file.
      machine: where it was measured.
      tuned_for: dotted key to the value that a run must have for the settings to hold.
      settings: nested blocks of the config.
      written: date and time.
    """

    path: Path
    machine: Machine
    tuned_for: Mapping[str, Any]
    settings: Mapping[str, Any]
    written: str

    def mismatch(self, config: RunConfig) -> str:
        """Say in which way a run is not the one that was tuned; empty where it is."""
        for key, value in _conditions(config, self.machine).items():
            if self.tuned_for.get(key) != value:
                return f"it was tuned for {key}={self.tuned_for.get(key)}, and this run has {value}"
        return ""


def tuned_folder(task: str) -> Path:
    """Return the folder of a task's files: in $UNILAB_CONFIG_DIR, else the user's config folder.

    Args:
      task: value of the config key `task`.
    """
    home = os.environ.get(FOLDER_VARIABLE)
    if home:
        base = Path(home).expanduser().absolute()
    else:
        xdg = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        base = Path(os.path.expanduser(xdg)) / "unilab"
    name = task_label(task)
    if task.endswith(".py"):  # two task files may have one name
        name += "-" + hashlib.sha256(task.encode()).hexdigest()[:8]
    return base / "tuned" / name


def check_writable(task: str) -> None:
    """Make the folder of a task's files.

    Raises:
      ConfigError: it cannot be written to.
    """
    folder = tuned_folder(task)
    reason = "there is no home folder" if not folder.is_absolute() else ""
    try:
        if not reason:
            folder.mkdir(parents=True, exist_ok=True)
            reason = "" if os.access(folder, os.W_OK) else "no permission to write"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ConfigError(
            f"{folder}: settings cannot be kept there: {reason}; set {FOLDER_VARIABLE} to a folder "
            "you may write to"
        )


def write_tuned(
    config: RunConfig,
    machine: Machine,
    settings: Mapping[str, int | bool],
    measured: Mapping[str, Any],
    versions: Mapping[str, str | None],
) -> Path:
    """Write a file that `train` picks up. It appears whole, in place of an older one.

    Args:
      config: the config that was tuned, with the settings laid over it.
      machine: where it was measured.
      settings: dotted key to value; `runtime.*`, and physics.num_envs.
      measured: figures, for a person.
      versions: of the packages, for a person.

    Returns:
      The file.

    Raises:
      ConfigError: the folder cannot be written to.
    """
    check_writable(config.task)
    path = tuned_folder(config.task) / machine.file_name
    content = {
        "about": _ABOUT,
        "task": config.task,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": {name: getattr(machine, name) for name in _MACHINE_KEYS},
        "tuned_for": _nest(_conditions(config, machine)),
        "settings": _nest(settings),
        "measured": measured,
        "versions": versions,
    }
    try:
        write_mapping(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def find_tuned(task: str, machine: Machine) -> Tuned | str | None:
    """Look for the settings of a task on a machine.

    Args:
      task: value of the config key `task`.
      machine: this one.

    Returns:
      The file; a line that says why what is there is left unused; or None where nothing is there.
    """
    folder = tuned_folder(task)
    path = folder / machine.file_name
    again = f"`unilab tune {task_label(task)}` measures anew"
    if not path.is_file():
        others = sorted(folder.glob("*.yaml"))
        if not others:
            return None
        return (
            f"the settings in {folder} are of other machines, or of another number of CPUs than "
            f"here ({machine.describe()}), and are not used; {again}"
        )
    try:
        tuned = read_tuned(path)
    except ConfigError as error:
        return f"{error}; the file is not used; {again}"
    if tuned.machine != machine:
        return f"{path} is of another machine ({tuned.machine.describe()}) and is not used; {again}"
    return tuned


def read_tuned(path: Path) -> Tuned:
    """Read a file that `write_tuned` wrote.

    Raises:
      ConfigError: it cannot be read, or is not such a file, or sets a key that it may not set.
    """
    values, lines = read_mapping(path, str(path))
    machine, tuned_for, settings = (
        _block(values, name, path) for name in ("machine", "tuned_for", "settings")
    )
    if set(machine) != set(_MACHINE_KEYS):
        raise ConfigError(f"{path}: is no file of `unilab tune`: machine has other keys")
    for key, _ in leaves(settings):
        valid = (*RUNTIME_KEYS, NUM_ENVS)
        if key not in valid or find_key(key.split(".")) is None:
            line = lines.get(f"settings.{key}", 1)
            raise ConfigError(f"{path}:{line}: {key} is no setting of it; {nearest(key, valid)}")
    written = str(values.get("written", ""))
    return Tuned(path, Machine(**machine), dict(leaves(tuned_for)), settings, written)


def _block(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    block = values.get(name)
    if not isinstance(block, dict):
        raise ConfigError(f"{path}: is no file of `unilab tune`: it has no block '{name}'")
    return block


def _conditions(config: RunConfig, machine: Machine) -> dict[str, Any]:
    """What a run must have in common with the one that was tuned."""
    device = "cpu" if config.device == "auto" and machine.gpu is None else config.device
    return {
        NUM_ENVS: config.physics.num_envs,
        "physics.model": config.physics.model,
        "learner": config.learner,
        "device": device,
    }


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *blocks, name = key.split(".")
        target = nested
        for block in blocks:
            target = target.setdefault(block, {})
        target[name] = value
    return nested
