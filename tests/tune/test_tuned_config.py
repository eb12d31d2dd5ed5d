"""Measured settings as a layer of the config: when they are used, and what is said when not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.config.files import write_task
from unilab.config import LoadedConfig, Machine, load_config, load_resolved, save_resolved
from unilab.config.tuned import check_writable, read_tuned, tuned_folder, write_tuned
from unilab.errors import ConfigError

HERE = Machine("Test CPU @ 3 GHz", 4, None)
SETTINGS = {
    "runtime.threads": 3,
    "runtime.shards": 1,
    "runtime.threads_per_shard": 1,
    "runtime.groups": 2,
    "runtime.overlap": True,
    "runtime.learner_threads": 2,
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNILAB_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def task(tmp_path: Path) -> str:
    return write_task(tmp_path)


def write(
    task: str, *overrides: str, machine: Machine = HERE, settings: dict[str, Any] = SETTINGS
) -> Path:
    config = load_config(task, overrides).config
    return write_tuned(config, machine, settings, {"env_steps_per_s": 1000}, {"numpy": "2"})


def load(task: str, *overrides: str, machine: Machine = HERE) -> LoadedConfig:
    return load_config(task, overrides, machine=machine)


def unused(task: str, *overrides: str, machine: Machine = HERE) -> str:
    """Load where the file must not be used; return the line that says so."""
    loaded = load(task, *overrides, machine=machine)
    assert loaded.config == load_config(task, overrides).config
    (note,) = loaded.notes
    assert "not used" in note
    assert "unilab tune balance" in note
    assert "\n" not in note
    return note


def test_settings_lie_over_the_file_and_under_the_command_line(tmp_path: Path) -> None:
    task = write_task(tmp_path, "runtime: {threads: 7, allow_oversubscription: true}\n")
    path = write(task)
    loaded = load(task, "runtime.groups=3")
    runtime = loaded.config.runtime
    assert (runtime.threads, runtime.overlap, runtime.groups) == (3, True, 3)
    assert runtime.allow_oversubscription is True  # of the task's file
    assert loaded.origins["runtime.threads"] == f"tuned on this machine, {path}"
    assert loaded.origins["runtime.groups"] == "command line"
    (note,) = loaded.notes
    assert str(path) in note
    assert "--no-tuned" in note
    assert loaded.with_value("seed", 3, "test").notes == loaded.notes


def test_only_who_asks_gets_them(task: str) -> None:
    write(task)
    loaded = load_config(task)
    assert loaded.config.runtime.threads == "auto"
    assert loaded.notes == ()


def test_without_a_file_nothing_is_said(task: str) -> None:
    loaded = load(task)
    assert loaded == load_config(task)


def test_a_saved_run_keeps_its_settings(task: str, tmp_path: Path) -> None:
    write(task)
    save_resolved(load(task).config, tmp_path / "run.yaml")
    write(task, settings={**SETTINGS, "runtime.threads": 1})
    assert load_resolved(tmp_path / "run.yaml").config.runtime.threads == 3


@pytest.mark.parametrize(
    "other",
    [
        Machine("Another CPU", 4, None),
        Machine(HERE.cpu, 2, None),
        Machine(HERE.cpu, 4, "Some GPU"),
    ],
)
def test_another_machine_or_fewer_cpus_do_without(task: str, other: Machine) -> None:
    write(task)
    note = unused(task, machine=other)
    assert "other machines" in note
    assert other.describe() in note


def test_a_file_that_was_copied_from_another_machine_is_noticed(task: str) -> None:
    path = write(task, machine=Machine("Another CPU", 64, None))
    path.rename(path.with_name(HERE.file_name))
    assert "of another machine (Another CPU, 64 CPU(s), no GPU)" in unused(task)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("physics.num_envs=8", "tuned for physics.num_envs=64, and this run has 8"),
        ("device=cuda", "tuned for device=cpu, and this run has cuda"),
    ],
)
def test_a_run_of_another_kind_does_without(task: str, override: str, text: str) -> None:
    write(task)
    assert text in unused(task, override)
    if "num_envs" in override:
        assert "`unilab tune balance physics.num_envs=8` measures anew" in unused(task, override)


def test_auto_and_cpu_are_one_device_where_there_is_no_gpu(task: str) -> None:
    write(task)
    assert load(task, "device=cpu").config.runtime.threads == 3


def test_a_number_of_envs_is_set_only_where_it_was_written(task: str) -> None:
    write(task, "physics.num_envs=32", settings={**SETTINGS, "physics.num_envs": 32})
    loaded = load(task)
    assert loaded.config.physics.num_envs == 32
    assert "physics.num_envs=32 among them" in loaded.notes[0]
    assert "tuned for physics.num_envs=32, and this run has 64" in unused(
        task, "physics.num_envs=64"
    )


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("threads: 3", "threads: 0", "runtime.threads: got 0"),
        ("threads: 3", "thread: 3", "runtime.thread is no setting of it; did you mean"),
        ("  runtime:", "  rewards:", "rewards.threads is no setting of it"),
        ("settings:", "setting:", "has no block 'settings'"),
        ("  cpus: 4", "  cores: 4", "machine has other keys"),
        ("groups: 2", "groups: 100", "runtime.groups=100 is more than physics.num_envs=64"),
        ("settings:", "settings: [", "not valid YAML"),
    ],
)
def test_a_broken_or_outdated_file_is_left_out(task: str, old: str, new: str, text: str) -> None:
    path = write(task)
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new, 1))
    note = unused(task)
    assert text in note
    assert str(path) in note


def test_errors_of_the_user_come_first(task: str) -> None:
    write(task)
    with pytest.raises(ConfigError, match=r"command line: physics.num_envz"):
        load(task, "physics.num_envz=3")


def test_the_file_holds_what_a_person_wants_to_know(task: str) -> None:
    text = write(task).read_text()
    for part in ("--no-tuned", "env_steps_per_s: 1000", "numpy:", HERE.cpu, "num_envs: 64"):
        assert part in text
    tuned = read_tuned(write(task))
    assert tuned.machine == HERE
    assert tuned.settings["runtime"]["overlap"] is True


def test_two_task_files_of_one_name_do_not_share_settings(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = write_task(tmp_path / "a"), write_task(tmp_path / "b")
    write(first)
    assert load(first).config.runtime.threads == 3
    assert load(second).config.runtime.threads == "auto"


def test_where_files_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tuned_folder("cartpole") == tmp_path / "config" / "tuned" / "cartpole"
    monkeypatch.delenv("UNILAB_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert tuned_folder("cartpole") == tmp_path / "xdg" / "unilab" / "tuned" / "cartpole"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned_folder("cartpole") == tmp_path / ".config" / "unilab" / "tuned" / "cartpole"


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNILAB_CONFIG_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set UNILAB_CONFIG_DIR to a folder"):
        check_writable("cartpole")


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_left_out(task: str) -> None:
    write(task).chmod(0)
    assert "cannot be read" in unused(task)
