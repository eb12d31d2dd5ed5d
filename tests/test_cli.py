"""The command line, run as a person runs it: exit codes, messages, and what gets imported."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.config.files import write_task
from unilab.cli import app
from unilab.config import config_dir, list_tasks, load_config, save_resolved
from unilab.tasks.base import build_task

COMMANDS = ("train", "eval", "export", "list", "explain", "tune", "monitor")
HEAVY = ("torch", "mujoco", "numba", "warp", "matplotlib")


def run_python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with standard input closed."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def unilab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python("from unilab.cli import main; main()", *arguments, cwd=cwd)


def error(*arguments: str, cwd: Path) -> str:
    """Run a command that must fail on the person's account, and return what it says."""
    done = unilab(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5
    return done.stderr


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that was never trained, in the default log folder."""
    run = tmp_path / "runs" / "balance" / "2026-01-01_00-00-00"
    run.mkdir(parents=True)
    save_resolved(load_config(write_task(tmp_path)).config, run / "config.yaml")
    return run


def imported_by(*arguments: str, cwd: Path) -> set[str]:
    code = (
        "import json, sys\nfrom unilab.cli import main\ntry:\n    main()\nfinally:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = run_python(code, *arguments, cwd=cwd)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_list_shows_every_task(tmp_path):
    done = unilab("list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [task.name for task in list_tasks()]
    for line, task in zip(lines, list_tasks(), strict=True):
        assert line.endswith(task.description)


@pytest.mark.parametrize("arguments", [("list",), ("--help",), ("train", "nope"), ("eval",)])
def test_light_commands_import_nothing_heavy(tmp_path, arguments):
    modules = imported_by(*arguments, cwd=tmp_path)
    assert "typer" in modules
    assert modules.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples(tmp_path, command):
    done = unilab(command, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"  unilab {command}" in done.stdout


def test_every_example_of_the_help_is_accepted(tmp_path, monkeypatch):
    """Options by the command's own parser; keys, values and terms by loading and building."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "path" / "to"
    folder.mkdir(parents=True)
    (folder / "my_task.py").write_text("from unilab.tasks.cartpole import TASK as TASK\n")
    shutil.copy(config_dir() / "cartpole.yaml", folder / "my_task.yaml")
    seen = 0
    for name, command in typer.main.get_command(app).commands.items():
        lines = [line.strip() for line in command.help.splitlines()]
        for line in (line for line in lines if line.startswith("unilab ")):
            head, *arguments = shlex.split(line)[1:]
            assert head == name
            words = command.make_context(name, arguments).params.get("words") or []
            has_task = bool(words) and "=" not in words[0]
            task, overrides = (words[0], words[1:]) if has_task else ("cartpole", words)
            build_task(load_config(task, overrides).config)
            seen += 1
    assert seen > 12


def test_help_lists_the_commands(tmp_path):
    done = unilab("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in done.stdout


def test_version_is_that_of_the_distribution(tmp_path):
    done = unilab("--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    name, version = done.stdout.split()
    assert name == "unilab"
    assert version[0].isdigit()


def test_a_checkout_that_is_not_installed_has_no_version_and_says_so(tmp_path):
    code = (
        "import importlib.metadata as m\ndef none(name): raise m.PackageNotFoundError(name)\n"
        "m.distribution = none\nfrom unilab.cli import main; main()"
    )
    done = run_python(code, "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "unilab unknown\n"), done.stderr


def test_wrong_usage_exits_with_2(tmp_path):
    for arguments in (("trian",), ("train", "--bad"), ("eval", "--run")):
        done = unilab(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_an_unknown_task_lists_the_tasks(tmp_path):
    message = error("train", "no_such_task", cwd=tmp_path)
    assert "unknown task 'no_such_task'" in message
    for task in list_tasks():
        assert task.name in message


@pytest.mark.parametrize("command", ["train", "explain"])
def test_a_missing_task_is_asked_for(tmp_path, command):
    assert f"unilab {command} TASK" in error(command, cwd=tmp_path)


@pytest.mark.parametrize("command", ["train", "eval", "export", "explain"])
def test_a_key_without_equals_shows_how_to_write_it(tmp_path, command):
    message = error(command, "env.episode_length_s", "5.0", cwd=tmp_path)
    assert "env.episode_length_s=5.0" in message
    assert '"env.episode_length_s=5.0"' in message
    assert "episode.length_s" in message


@pytest.mark.parametrize("command", ["train", "eval", "export", "explain"])
def test_every_command_refuses_a_misspelt_key_alike(tmp_path, run_dir, command):
    message = error(command, "balance.py", "env.nun_envs=4", cwd=tmp_path)
    assert "command line: env.nun_envs: unknown key" in message
    assert "physics.num_envs" in message


def test_a_wrong_value_is_refused_for_a_new_run_and_an_old_one(tmp_path, run_dir):
    for arguments in (["train", "balance.py"], ["eval"], ["train", "--resume", "latest"]):
        message = error(*arguments, "physics.num_envs=0", cwd=tmp_path)
        assert "command line: physics.num_envs: got 0" in message


@pytest.mark.parametrize("command", [("eval", "--run"), ("export", "--run"), ("train", "--resume")])
def test_a_run_that_is_not_there_lists_those_that_are(tmp_path, run_dir, command):
    message = error(*command, "none", cwd=tmp_path)
    assert f"balance/{run_dir.name}" in message
    assert "there are no runs" in error(*command, "-1", "log.dir=elsewhere", cwd=tmp_path)


@pytest.mark.parametrize("selector", ["latest", "-1", "2026-01-01_00-00-00"])
def test_a_run_is_found_by_every_selector(tmp_path, run_dir, selector):
    for command in ("eval", "export"):
        message = error(command, "--run", selector, cwd=tmp_path)
        assert f"checkpoint 'latest' not found in run {run_dir.relative_to(tmp_path)}" in message


def test_export_takes_no_values_but_the_place_of_the_runs(tmp_path, run_dir):
    assert "valid here: log.dir" in error("export", "physics.num_envs=4", cwd=tmp_path)
    (tmp_path / "runs").rename(tmp_path / "old")
    assert "not found in run old/balance" in error("export", "log.dir=old", cwd=tmp_path)


def test_a_resumed_run_keeps_its_name(tmp_path, run_dir):
    assert "--name" in error("train", "--resume", "latest", "--name", "x", cwd=tmp_path)


def run_with_command(body: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run main() with one more command, whose body is given."""
    code = "from unilab.cli import app, main\nfrom unilab.cli.base import exits\n"
    code += "@app.command()\n@exits\ndef more():\n"
    return run_python(code + f"    {body}\nmain()", "more", cwd=cwd)


def test_our_own_failure_shows_a_full_plain_traceback(tmp_path):
    done = run_with_command("raise RuntimeError('solver broke')", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.endswith("RuntimeError: solver broke\n")


def test_exit_codes_of_interrupts_mistakes_and_commands(tmp_path):
    assert run_with_command("raise KeyboardInterrupt", tmp_path).returncode == 130
    assert run_with_command("return 3", tmp_path).returncode == 3
    done = run_with_command(
        "from unilab.errors import ConfigError; raise ConfigError('no')", tmp_path
    )
    assert (done.returncode, done.stderr) == (2, "error: no\n")
