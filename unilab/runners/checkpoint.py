"""Checkpoints restore everything: one file, written atomically, of tensors and plain values."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from unilab.config import RunConfig
from unilab.config.base import to_plain
from unilab.errors import ConfigError, UnilabError
from unilab.runs import best_path, checkpoint_path, list_checkpoints

FORMAT = 1
_KEYS = ("format", "task", "config", "progress", "learner", "pipeline")
_WAY_OUT = "choose another with --checkpoint, or remove it: --resume then takes the one before"


class CheckpointError(UnilabError):
    """A checkpoint could not be written; those written before are as they were."""


@dataclass
class Progress:
    """Where a run is: the counters that go on after a resume.

    Attributes:
      iteration: iterations done.
      env_steps: control steps of all envs together.
      wall_s: time spent training, over all sessions of the run.
      score: smoothed episode return, what "best" is judged by; None before the first episode.
      best_score: of the best checkpoint so far.
    """

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    score: float | None = None
    best_score: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory.

    Attributes:
      learner, pipeline: their `state_dict`s.
      runner: what the loop carries besides, such as a replay buffer.
    """

    config: RunConfig
    progress: Progress
    learner: dict[str, Any]
    pipeline: dict[str, Any]
    runner: dict[str, Any] = field(default_factory=dict)


def save(run_dir: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint, note whether it is the best, and drop old ones.

    The file appears by an atomic rename after its bytes are on disk, so a kill at any moment
    leaves the latest checkpoint readable.

    Args:
      run_dir: the run.
      checkpoint: what to write.
      keep: how many of the latest stay; the best stays besides.

    Returns:
      The path of the checkpoint.

    Raises:
      CheckpointError: the disk is full, or the folder cannot be written to.
    """
    progress = checkpoint.progress
    best = progress.score is not None and (
        progress.best_score is None or progress.score > progress.best_score
    )
    if best:
        progress.best_score = progress.score
    content = {
        "format": FORMAT,
        "task": checkpoint.config.task,
        "config": json.dumps(to_plain(checkpoint.config)),
        "progress": dict(vars(progress)),
        "learner": checkpoint.learner,
        "pipeline": _to_tensors(checkpoint.pipeline),
        "runner": _to_tensors(checkpoint.runner),
    }
    path = checkpoint_path(run_dir, progress.iteration)
    partial = path.with_name(path.name + ".partial")
    try:
        write_file(partial, content)
        if best:  # first, so that no kill leaves a latest checkpoint that tells of a best too many
            _link(partial, best_path(run_dir))
        os.replace(partial, path)
        stale = path.parent.glob("*.partial")  # of a process that was killed
        for old in (*stale, *(old for _, old in list_checkpoints(run_dir)[:-keep])):
            old.unlink(missing_ok=True)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def load(path: Path, *, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint, with `weights_only=True`.

    Raises:
      ConfigError: the file is no checkpoint of this program, or of another format.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch raises many kinds for a file it cannot read
        lines = str(error).splitlines() or [""]
        raise ConfigError(
            f"{path}: is not a checkpoint that can be read ({type(error).__name__}: "
            f"{lines[0][:200]}); {_WAY_OUT}"
        ) from error
    missing = [k for k in _KEYS if not isinstance(content, dict) or k not in content]
    if missing:
        raise ConfigError(
            f"{path}: is not a checkpoint of unilab: it lacks {', '.join(missing)}; {_WAY_OUT}"
        )
    if content["format"] != FORMAT:
        raise ConfigError(
            f"{path}: has format {content['format']}, this version reads format {FORMAT}; use the "
            "version of unilab that wrote it"
        )
    try:
        config = RunConfig.model_validate(json.loads(content["config"]))
        progress = Progress(**{f.name: content["progress"][f.name] for f in fields(Progress)})
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: what it says of its run cannot be read by this version ("
            f"{str(error).splitlines()[0]}); {_WAY_OUT}"
        ) from error
    runner = content.get("runner", {})  # older files have none
    return Checkpoint(config, progress, content["learner"], content["pipeline"], runner)


def check_same_task(checkpoint: Checkpoint, config: RunConfig, path: Path) -> None:
    """Raise ConfigError where a checkpoint belongs to another task or learner."""
    for key in ("task", "learner"):
        there, here = getattr(checkpoint.config, key), getattr(config, key)
        if there != here:
            raise ConfigError(
                f"{path}: is a checkpoint of {key}={there}, this run has {key}={here}; give a "
                f"checkpoint of {here} or start from the run it belongs to"
            )


def write_file(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values, on the disk when it returns. Raises OSError."""
    # By way of memory: on a full disk torch's own writer hides the cause.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with path.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, replacing what has it, in one go."""
    fresh = name.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        os.link(path, fresh)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, fresh)
    os.replace(fresh, name)


def _to_tensors(value: Any) -> Any:
    """Turn NumPy arrays into tensors, so that a file loads with `weights_only=True`."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Mapping):
        return {key: _to_tensors(item) for key, item in value.items()}
    return value
