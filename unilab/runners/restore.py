"""A trained policy back from its run: config, task and learner, as they were in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from unilab.config import load_resolved
from unilab.learners.base import Policy
from unilab.runners import checkpoint as checkpoints
from unilab.runners.backends import choose_device
from unilab.runners.build import make_learner
from unilab.runners.checkpoint import Progress
from unilab.runs import CONFIG_FILE
from unilab.runtime.threads import make_side_plan
from unilab.tasks.base import BuiltTask, build_task


@dataclass(frozen=True)
class RestoredPolicy:
    """What `eval` and `export` work on."""

    built: BuiltTask
    learner: Policy
    progress: Progress


def restore_policy(run_dir: Path, checkpoint: Path, overrides: list[str]) -> RestoredPolicy:
    """Build task and learner of a run and load a checkpoint.

    Args:
      run_dir: the run; its resolved config is used, not the task's file of today.
      checkpoint: the file.
      overrides: `key=value` laid over the run's config.

    Raises:
      ConfigError: the checkpoint is not one, or belongs to another task.
    """
    loaded = checkpoints.load(checkpoint)
    config = load_resolved(run_dir / CONFIG_FILE, overrides).config
    checkpoints.check_same_task(loaded, config, checkpoint)
    built = build_task(config)
    torch.set_num_threads(make_side_plan(config.runtime, config.physics.num_envs).learner)
    learner = make_learner(built, config, choose_device(config.device), 0)
    learner.load_state_dict(loaded.learner)
    return RestoredPolicy(built, learner, loaded.progress)
