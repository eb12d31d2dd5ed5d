"""Run directories: made once, never overwritten, and found again by name.

A run is `<log.dir>/<task>/<YYYY-mm-dd_HH-MM-SS>[_name]` and holds config.yaml (the resolved
config), run.json (command, git revision, versions), git.diff (uncommitted changes, if any) and
checkpoints/.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from unilab.config import RunConfig, save_resolved, task_label
from unilab.errors import ConfigError, nearest

CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"
DIFF_FILE = "git.diff"
CHECKPOINT_FOLDER = "checkpoints"
BEST_FILE = "best.pt"

_TIME_FORMAT = "%Y-%m-%d_%H-%M-%S"
_TIMED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:_(.+))?")
_ITERATION = re.compile(r"iter_(\d+)\.pt")
_PACKAGES = ("unilab-engine", "torch", "mujoco", "numba", "numpy")
_GIT_TIMEOUT_S = 10
_LISTED = 10


def create_run(config: RunConfig, *, name: str | None = None, command: Sequence[str] = ()) -> Path:
    """Make the directory of a new run and write down what the run is.

    Args:
      config: the resolved config; saved as config.yaml.
      name: added to the directory's name; letters, digits, ".", "_" and "-".
      command: the command line; saved in run.json.

    Returns:
      The new directory, with an empty folder for checkpoints in it.

    Raises:
      ConfigError: the name is not valid or `log.dir` cannot be written to.
    """
    check_new_run(config, name)
    created = datetime.now().astimezone()
    try:
        run_dir = _make_directory(Path(config.log.dir) / task_label(config.task), created, name)
        (run_dir / CHECKPOINT_FOLDER).mkdir()
        save_resolved(config, run_dir / CONFIG_FILE)
        _write_json(run_dir / RUN_FILE, _describe_run(config, name, command, created, run_dir))
    except OSError as error:
        raise _no_log_dir(config, f"{error.strerror or error} ({error.filename})") from None
    return run_dir


def check_new_run(config: RunConfig, name: str | None) -> None:
    """Refuse what `create_run` would refuse, without writing anything.

    Raises:
      ConfigError: the name is not valid or `log.dir` cannot be written to.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ConfigError(
            f"--name: got {name!r}; valid: letters, digits, '.', '_' and '-', such as wide_stance"
        )
    parent = Path(config.log.dir).absolute() / task_label(config.task)
    there = next(folder for folder in (parent, *parent.parents) if folder.exists())
    if not there.is_dir():
        raise _no_log_dir(config, f"{there} is no folder")
    if not os.access(there, os.W_OK):
        raise _no_log_dir(config, f"{there} cannot be written to")


def list_runs(log_dir: Path | str, task: str | None = None) -> list[Path]:
    """Return the run directories under `log_dir`, oldest first; of one task only where given."""
    pattern = f"{task_label(task) if task else '*'}/*/{CONFIG_FILE}"
    return sorted((path.parent for path in Path(log_dir).glob(pattern)), key=_age_key)


def resolve_run(selector: str | int, log_dir: Path | str, task: str | None = None) -> Path:
    """Return the run directory that a person means.

    Args:
      selector: "latest"; -1 for the latest, -2 for the one before; the name of a run directory or
        the name it was given with --name; or a path. Numbers may be int or text.
      log_dir: the folder of all runs, config key `log.dir`.
      task: look only among the runs of this task.

    Raises:
      ConfigError: no such run, or several; the message lists the runs there are.
    """
    text = str(selector).strip()
    runs = list_runs(log_dir, task)
    if text == "latest" or re.fullmatch(r"-\d+", text):
        back = 1 if text == "latest" else -int(text)
        if 1 <= back <= len(runs):
            return runs[-back]
        raise _no_run(text, runs, log_dir, task)
    for candidate in (Path(text).expanduser(), Path(log_dir) / text):
        if text and (candidate / CONFIG_FILE).is_file():
            return candidate
    found = [run for run in runs if run.name == text] or [
        run for run in runs if (match := _TIMED.fullmatch(run.name)) and match[2] == text
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"run '{text}' is the name of several; give one of the paths: "
            + ", ".join(str(run) for run in found)
        )
    raise _no_run(text, runs, log_dir, task)


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Return where the checkpoint of an iteration lives."""
    return run_dir / CHECKPOINT_FOLDER / f"iter_{iteration:06d}.pt"


def best_path(run_dir: Path) -> Path:
    """Return where the best checkpoint lives."""
    return run_dir / CHECKPOINT_FOLDER / BEST_FILE


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Return (iteration, path) of every numbered checkpoint, oldest first."""
    found = [
        (int(match[1]), path)
        for path in (run_dir / CHECKPOINT_FOLDER).glob("iter_*.pt")
        if (match := _ITERATION.fullmatch(path.name))
    ]
    return sorted(found)


def find_checkpoint(run_dir: Path, which: str | int | Path = "latest") -> Path:
    """Return a checkpoint file of a run.

    Args:
      run_dir: the run directory.
      which: "latest", "best", an iteration (int or text), a file name in the run, or a path.

    Raises:
      ConfigError: there is no such checkpoint; the message lists those there are.
    """
    text, numbered = str(which).strip(), list_checkpoints(run_dir)
    wanted: list[Path] = []
    if text == "latest":
        wanted = [path for _, path in numbered[-1:]]
    elif text == "best":
        wanted = [best_path(run_dir)]
    elif text.isdecimal():
        wanted = [path for iteration, path in numbered if iteration == int(text)]
    elif text:
        wanted = [Path(text).expanduser(), run_dir / CHECKPOINT_FOLDER / text]
    for path in wanted:
        if path.is_file():
            return path
    names = [str(iteration) for iteration, _ in numbered]
    names += ["best"] if best_path(run_dir).is_file() else []
    there = f"valid: latest, {', '.join(names)}, or a path" if names else "it has none yet"
    raise ConfigError(f"checkpoint '{text}' not found in run {run_dir}; {there}")


def _no_log_dir(config: RunConfig, cause: str) -> ConfigError:
    return ConfigError(
        f"log.dir={config.log.dir}: no run directory can be made there: {cause}; valid: a folder "
        "you may write to, such as log.dir=runs"
    )


def _make_directory(parent: Path, created: datetime, name: str | None) -> Path:
    stem = created.strftime(_TIME_FORMAT) + (f"_{name}" if name else "")
    parent.mkdir(parents=True, exist_ok=True)
    count = 1
    while True:
        run_dir = parent / (stem if count == 1 else f"{stem}_{count}")
        try:
            run_dir.mkdir()
        except FileExistsError:
            count += 1
        else:
            return run_dir


def _describe_run(
    config: RunConfig, name: str | None, command: Sequence[str], created: datetime, run_dir: Path
) -> dict[str, Any]:
    return {
        "task": config.task,
        "name": name,
        "created": created.isoformat(),
        "command": list(command),
        "cwd": str(Path.cwd()),
        "git": _describe_git(run_dir / DIFF_FILE),
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _describe_git(diff_path: Path) -> dict[str, Any] | None:
    """Return revision and changed files of the repository around the working directory, if any.

    Uncommitted changes of tracked files go to `diff_path`.
    """
    if _git("rev-parse", "--is-inside-work-tree") is None:
        return None
    revision = _git("rev-parse", "--verify", "--quiet", "HEAD")
    diff = _git("diff", "--no-ext-diff", "--no-color", *(["HEAD"] if revision else []))
    if diff:
        diff_path.write_bytes(diff)
    status = _git("status", "--porcelain")
    return {
        "revision": revision.decode().strip() if revision else None,
        "status": None if status is None else status.decode(errors="replace").splitlines(),
        "diff": DIFF_FILE if diff else None,
    }


def _git(*arguments: str) -> bytes | None:
    """Return what git prints; None where there is no git, no repository, or it takes too long."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _write_json(path: Path, values: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _age_key(run: Path) -> tuple[str, int, str]:
    """Sort by the time in the name; within one second by when run.json was written."""
    match = _TIMED.fullmatch(run.name)
    written = run / RUN_FILE
    age_ns = written.stat().st_mtime_ns if written.is_file() else 0
    return (match[1] if match else "", age_ns, run.name)


def _no_run(text: str, runs: Sequence[Path], log_dir: Path | str, task: str | None) -> ConfigError:
    of_task = f" of task {task_label(task)}" if task else ""
    if not runs:
        return ConfigError(
            f"run '{text}' not found: there are no runs{of_task} in '{log_dir}'; train one first, "
            "or say where they are with log.dir=FOLDER"
        )
    shown = [f"{run.parent.name}/{run.name}" for run in reversed(runs)]
    more = f"\n  ... {len(shown)} in all" if len(shown) > _LISTED else ""
    near = nearest(text, [run.name for run in runs])
    help_text = f"; {near}" if near.startswith("did") else ""
    return ConfigError(
        f"run '{text}' not found in '{log_dir}'{help_text}\n  valid: latest, -1, a path, or one of "
        f"the runs{of_task}, newest first:\n    " + "\n    ".join(shown[:_LISTED]) + more
    )
