"""Task files for the tests of config, runs and the command line."""

from __future__ import annotations

from pathlib import Path

BALANCE = """\
description: Hold a pole upright
physics:
  num_envs: 16
rewards:
  upright: {weight: 2.0, std: 1e-3}
  effort:
    weight: -1
terminations:
  tilt:
learners:
  ppo:
    gamma: 0.9
    overrides:
      physics: {num_envs: 64, substeps: 2}
      rewards: {effort: null}
"""


def write_task(folder: Path, yaml: str = BALANCE, name: str = "balance") -> str:
    """Write `name`.py and `name`.yaml, and return the path of the task file."""
    (folder / f"{name}.py").write_text("")
    (folder / f"{name}.yaml").write_text(yaml)
    return str(folder / f"{name}.py")
