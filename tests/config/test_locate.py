"""Finding tasks, in a checkout and in an installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import unilab.config.locate as locate
from unilab.config import config_dir, list_tasks, load_config
from unilab.errors import ConfigError

ROOM = Path(locate.__file__).resolve().parent


def copy_package(folder: Path) -> Path:
    """Copy errors and config alone, as an installed package without its surroundings."""
    package = folder / "unilab"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "errors.py").write_text((ROOM.parent / "errors.py").read_text())
    for path in ROOM.glob("*.py"):
        (package / "config" / path.name).write_text(path.read_text())
    return package


def run_list(folder: Path) -> str:
    code = "from unilab.config import list_tasks, load_config\nfor t in list_tasks(): print(*t)\n"
    code += "print(load_config('hop').origins['seed'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_configs_are_found_in_the_package_or_in_the_checkout(tmp_path, installed):
    package = copy_package(tmp_path)
    folder = package / "configs" if installed else tmp_path / "configs"
    if not installed:
        (tmp_path / "pyproject.toml").write_text("")
    folder.mkdir()
    (folder / "hop.yaml").write_text("description: Hop on one leg\nseed: 1\n")
    (folder / "crawl.yaml").write_text("seed: 2\n")
    assert run_list(tmp_path) == "crawl \nhop Hop on one leg\nconfigs/hop.yaml:2\n"


def test_every_listed_task_loads_and_is_described():
    assert [task.name for task in list_tasks()] == sorted(
        p.stem for p in config_dir().glob("*.yaml")
    )
    for task in list_tasks():
        assert task.description, task.name
        assert load_config(task.name).config.task == task.name


def test_an_unknown_task_names_near_ones():
    with pytest.raises(ConfigError) as caught:
        load_config("no_such_task")
    for name in (task.name for task in list_tasks()):
        assert name in str(caught.value)


def test_a_config_file_in_place_of_the_task_file_is_explained(tmp_path):
    with pytest.raises(ConfigError, match=r"given by its \.py"):
        load_config(str(tmp_path / "balance.yaml"))
