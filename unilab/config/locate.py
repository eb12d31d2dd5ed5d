"""Where tasks live: configs of the package, and task files of the user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unilab.config.yaml_io import read_mapping
from unilab.errors import ConfigError, nearest


class TaskInfo(NamedTuple):
    """A task of the package: its name, and what it is in one line."""

    name: str
    description: str


@dataclass(frozen=True)
class TaskFiles:
    """What a task is made of.

    Attributes:
      task: value of the config key `task`: a name, or the absolute path of a .py file.
      config_path: its YAML file.
      shown: how messages call the YAML file.
    """

    task: str
    config_path: Path
    shown: str


def config_dir() -> Path:
    """Return the folder of the package's task configs: inside the wheel, or of the checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    if inside.is_dir() or not (package.parent / "pyproject.toml").is_file():
        return inside
    return package.parent / "configs"


def list_tasks() -> list[TaskInfo]:
    """Return the package's tasks in alphabetical order. Imports no task, so it is quick.

    Raises:
      ConfigError: a config file is not valid YAML.
    """
    found = []
    for path in sorted(config_dir().glob("*.yaml")):
        values, _ = read_mapping(path, f"configs/{path.name}")
        found.append(TaskInfo(path.stem, str(values.get("description") or "")))
    return found


def task_names() -> list[str]:
    """Return the names of the package's tasks, sorted."""
    return sorted(path.stem for path in config_dir().glob("*.yaml"))


def task_label(task: str) -> str:
    """Return the short name of a task: the name itself, or the stem of a task file."""
    return Path(task).stem if task.endswith(".py") else task


def locate_task(task: str) -> TaskFiles:
    """Find the files of a task.

    Args:
      task: a name such as "go1_walk", or the path of a .py task file.

    Raises:
      ConfigError: there is no such task, or the YAML beside a task file is missing.
    """
    if task.endswith(".py"):
        return _locate_file(task)
    path = config_dir() / f"{task}.yaml"
    if task in task_names():
        return TaskFiles(task, path, f"configs/{task}.yaml")
    names = task_names()
    listed = ", ".join(names) or "none"
    help_text = nearest(task, names)
    if not help_text.startswith("valid"):
        help_text += f" valid: {listed}"
    if os.sep in task or task.endswith((".yaml", ".yml")):
        help_text += "; a task file of your own is given by its .py, such as my_task.py"
    raise ConfigError(f"unknown task '{task}'; {help_text} (see `unilab list`)")


def _locate_file(task: str) -> TaskFiles:
    path = Path(task).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"task file '{task}' does not exist (looked in {Path.cwd()}); valid: the path of a "
            f".py task file, or one of the tasks {', '.join(task_names()) or 'none'}"
        )
    config_path = path.with_suffix(".yaml")
    if not config_path.is_file():
        raise ConfigError(
            f"task file '{task}' has no config; put '{config_path.name}' beside it with at least "
            "its observations and rewards"
        )
    return TaskFiles(str(path.resolve()), config_path, str(config_path))
