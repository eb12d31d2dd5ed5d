"""A trained run that tests may look at, or copy and change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.runners.support import train


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cart-pole run of 4 iterations; the last 3 checkpoints are kept. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    options = ("train.iterations=4", "checkpoint.every=1", "evaluation.at_end=true")
    return train(folder, *options, "log.tensorboard=false")


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    """A copy of it under `tmp_path`/runs, to be changed at will."""
    run = tmp_path / "runs" / "cartpole" / finished.name
    shutil.copytree(finished, run)
    return run
