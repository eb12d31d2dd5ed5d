"""Checkpoints hold everything, appear in one go, and are kept or refused by clear rules."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runners.support import TINY, cli, files, last_checkpoint, tensors
from unilab.buffers.rollout import Rollout
from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.runners import checkpoint as checkpoints
from unilab.runners.build import make_learner, make_pipeline
from unilab.runners.checkpoint import Checkpoint, CheckpointError, Progress
from unilab.runners.on_policy import collect, set_first
from unilab.runs import best_path, checkpoint_path, list_checkpoints
from unilab.runtime.threads import make_plan
from unilab.runtime.timers import Timers
from unilab.tasks.base import build_task

CPU = torch.device("cpu")
# What a walk does not enter: the clock, code, what the model and the config fix.
CLOSED = (Timers, type, str, bytes, Path)


class Parts:
    """A learner, a pipeline and a rollout, built anew from a config."""

    def __init__(self, *overrides: str) -> None:
        self.config = load_config("cartpole", [*TINY, *overrides]).config
        built = build_task(self.config)
        plan = make_plan(self.config.runtime, self.config.physics.num_envs)
        self.pipeline = make_pipeline(built, plan, seed=7)
        self.learner = make_learner(built, self.config, CPU, 7)
        kernel, steps = built.kernel, self.config.learners.ppo.num_steps
        self.rollout = Rollout(
            steps, self.pipeline.num_envs, kernel.num_obs, kernel.num_critic_obs, 1, CPU
        )

    def train(self, iterations: int) -> list[dict[str, float]]:
        """Iterations as the runner does them; returns what each logs."""
        logs = []
        for _ in range(iterations):
            collect(self.pipeline, self.learner.act, self.rollout)
            metrics = self.learner.update(self.rollout)
            self.rollout.carry_over()
            log = self.pipeline.take_log()
            logs.append(log | {name: float(value) for name, value in metrics.items()})
        return logs

    def checkpoint(self) -> Checkpoint:
        learner, pipeline = self.learner.state_dict(), self.pipeline.state_dict()
        return Checkpoint(self.config, Progress(iteration=2), learner, pipeline)


def walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every array, tensor, random generator and number reachable from an object, by its path."""
    if isinstance(value, bool | int | float | np.ndarray | Tensor | torch.Generator):
        if isinstance(value, Tensor) and value.grad is not None:
            yield f"{path}.grad", value.grad
        yield path, value
        return
    if (
        value is None
        or isinstance(value, CLOSED)
        or id(value) in seen
        or (callable(value) and not (isinstance(value, torch.nn.Module)))
    ):
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        items = [(f"[{key}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple | set):
        items = [(f"[{i}]", item) for i, item in enumerate(value)]
    elif type(value).__module__.startswith(("unilab", "torch.nn")):
        names = (
            [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        )
        attributes = {**{n: getattr(value, n) for n in names}, **getattr(value, "__dict__", {})}
        items = [(f".{key}", item) for key, item in attributes.items()]
    else:
        return
    for name, item in items:
        yield from walk(item, path + name, seen)


def contents(parts: Parts) -> dict[str, Any]:
    roots = {"learner": parts.learner, "pipeline": parts.pipeline, "rollout": parts.rollout}
    return dict(walk(roots, "", set()))


def bits(value: Any) -> bytes:
    return numbers(value).tobytes()


def numbers(value: Any) -> np.ndarray:
    """The numbers of an array or a tensor (a view), of a generator's state, or of a scalar."""
    if isinstance(value, torch.Generator):
        value = value.get_state()
    return np.asarray(value.detach() if isinstance(value, Tensor) else value)


def poison(value: Any, there: np.ndarray) -> None:
    """Where an array differs from `there`, put numbers that show wherever they are used."""
    array = numbers(value)
    array[array != there] = math.nan if array.dtype.kind == "f" else 1


@pytest.mark.parametrize("symmetry", ["none", "augment"])
def test_what_a_restore_does_not_bring_back_is_never_read(tmp_path, symmetry):
    """Whatever differs after a restore is filled with NaN, and training goes on bit for bit."""
    override = f"learners.ppo.symmetry={symmetry}"
    first = Parts(override)
    first.pipeline.reset()
    set_first(first.pipeline, first.rollout)
    first.train(2)
    (tmp_path / "checkpoints").mkdir()
    path = checkpoints.save(tmp_path, first.checkpoint(), keep=1)
    there = {name: numbers(value).copy() for name, value in contents(first).items()}
    assert len(there) > 100

    second = Parts(override)
    second.pipeline.reset()
    set_first(second.pipeline, second.rollout)
    second.train(1)  # every buffer is there and holds something else
    loaded = checkpoints.load(path)
    second.learner.load_state_dict(loaded.learner)
    second.pipeline.load_state_dict(loaded.pipeline)
    differing = []
    for name, value in contents(second).items():
        if there[name].tobytes() != bits(value):
            assert isinstance(value, np.ndarray | Tensor), f"{name} is not restored"
            differing.append(name)
            poison(value, there[name])
    assert any("[rollout]" in name for name in differing)
    set_first(second.pipeline, second.rollout)

    assert second.train(3) == first.train(3)
    for one, two in zip(*(tensors(_state(p)) for p in (first, second)), strict=True):
        assert one[0] == two[0]
        assert bits(one[1]) == bits(two[1]), one[0]
    first.pipeline.close()
    second.pipeline.close()


def _state(parts: Parts) -> dict[str, Any]:
    plain = {
        "learner": parts.learner.state_dict(),
        "pipeline": parts.pipeline.state_dict(),
    }
    plain["pipeline"] = {
        key: {name: torch.from_numpy(array) for name, array in value.items()}
        for key, value in plain["pipeline"].items()
    }
    return plain


def test_a_file_holds_tensors_and_plain_values_only(finished):
    for _, path in list_checkpoints(finished):
        content = torch.load(path, weights_only=True)
        assert content["task"] == "cartpole"
        assert json.loads(content["config"])["learners"]["ppo"]["num_steps"] == 6
        count = content["learner"]["obs_normalizer"]["count"]
        assert count == 48.0 * content["progress"]["iteration"]


def small_checkpoint(iteration: int, score: float | None, best: float | None) -> Checkpoint:
    config = load_config("cartpole", TINY).config
    learner = {"weight": torch.full((4,), float(iteration))}
    pipeline = {"arrays": {"step_io": np.arange(4, dtype=np.int32)}, "physics": {}}
    return Checkpoint(config, Progress(iteration, 0, 0.0, score, best), learner, pipeline)


def test_the_latest_and_the_best_are_kept(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    best = None
    for iteration, score in enumerate([None, 1.0, 5.0, 3.0, 4.0, 2.0], start=1):
        checkpoint = small_checkpoint(iteration, score, best)
        checkpoints.save(tmp_path, checkpoint, keep=2)
        best = checkpoint.progress.best_score
    assert [iteration for iteration, _ in list_checkpoints(tmp_path)] == [5, 6]
    found = checkpoints.load(best_path(tmp_path))
    assert (found.progress.iteration, found.progress.score) == (3, 5.0)
    assert found.learner["weight"].tolist() == [3.0] * 4
    assert found.pipeline["arrays"]["step_io"].tolist() == [0, 1, 2, 3]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"iter_000005.pt", "iter_000006.pt", "best.pt"}


def test_a_half_written_file_is_never_taken_for_a_checkpoint(trained, tmp_path):
    latest = list_checkpoints(trained)[-1][1]
    partial = checkpoint_path(trained, 9).with_name("iter_000009.pt.partial")
    partial.write_bytes(latest.read_bytes()[:1000])
    outcome = cli("train", "--resume", "latest", "train.iterations=5", cwd=tmp_path)
    assert outcome.code == 0, outcome
    assert not partial.exists()
    assert last_checkpoint(trained)["progress"]["iteration"] == 5


def test_a_failed_write_leaves_the_ones_before(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    checkpoints.save(tmp_path, small_checkpoint(1, 1.0, None), keep=2)
    before = files(tmp_path)
    with (
        largest_file(1000),
        pytest.raises(CheckpointError, match=r"iter_000002\.pt: cannot be written: File too large"),
    ):
        checkpoints.save(tmp_path, small_checkpoint(2, 2.0, 1.0), keep=2)
    assert files(tmp_path) == before


def test_a_folder_that_is_gone_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"iter_000001\.pt: cannot be written: No such file"):
        checkpoints.save(tmp_path, small_checkpoint(1, None, None), keep=1)


def damaged(run: Path, how: str) -> Path:
    """Damage the latest checkpoint of a run."""
    path = list_checkpoints(run)[-1][1]
    content = torch.load(path, weights_only=True)
    data = path.read_bytes()
    path.unlink()
    if how == "empty":
        path.touch()
    elif how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "text":
        path.write_text("not a checkpoint\n")
    elif how == "flipped":
        path.write_bytes(data[:200] + bytes(b ^ 0xFF for b in data[200:600]) + data[600:])
    elif how == "folder":
        path.mkdir()
    elif how == "foreign":
        torch.save({"model": torch.zeros(3)}, path)
    elif how == "list":
        torch.save([1, 2, 3], path)
    elif how == "pickle":
        torch.save({"path": Path("x")}, path)
    elif how == "format":
        torch.save({**content, "format": 99}, path)
    elif how == "config":
        torch.save({**content, "config": json.dumps({"task": "cartpole", "frobnicate": 1})}, path)
    else:
        assert how == "progress"
        torch.save({**content, "progress": {}}, path)
    return path


DAMAGES = ("empty", "truncated", "text", "flipped", "foreign", "list", "pickle", "format", "config",
           "progress")  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name(trained, how):
    path = damaged(trained, how)
    with pytest.raises(ConfigError) as caught:
        checkpoints.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < 500
    assert "\n" not in message


@pytest.mark.parametrize("command", [("train", "--resume", "latest"), ("eval",), ("export",)])
def test_every_command_refuses_a_damaged_checkpoint_and_takes_another(trained, tmp_path, command):
    damaged(trained, "truncated")
    before = files(trained)
    more = ("train.iterations=5",) if command[0] == "train" else ()
    outcome = cli(*command, *more, cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    assert "iter_000004.pt" in outcome.err
    assert files(trained) == before


def test_after_removing_the_damaged_one_the_run_goes_on_from_the_one_before(trained, tmp_path):
    damaged(trained, "truncated").unlink()
    outcome = cli("train", "--resume", "latest", cwd=tmp_path)
    assert outcome.code == 0, outcome
    assert "resumed  after iteration 3" in outcome.out


def test_a_checkpoint_of_another_task_is_refused(trained, tmp_path):
    other = checkpoints.load(list_checkpoints(trained)[-1][1])
    config = load_config("go1_walk").config
    foreign = tmp_path / "runs" / "foreign"
    (foreign / "checkpoints").mkdir(parents=True)
    path = checkpoints.save(foreign, dataclasses.replace(other, config=config), keep=1)
    outcome = cli("eval", "--checkpoint", str(path), cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert "task=go1_walk" in outcome.err
    shutil.copy(path, checkpoint_path(trained, 4))
    outcome = cli("train", "--resume", "latest", "train.iterations=5", cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert "task=go1_walk" in outcome.err


def test_a_run_that_cannot_write_its_checkpoint_says_which_one_is_good(trained, tmp_path):
    arguments = ("train", "--resume", "latest", "train.iterations=5")
    good = list_checkpoints(trained)[-1][1]
    limit = good.stat().st_size - 1  # lets everything through but a checkpoint
    with largest_file(limit), pytest.raises(CheckpointError, match=r"iter_000005\.pt") as caught:
        cli(*arguments, cwd=tmp_path)
    (note,) = caught.value.__notes__
    assert f"the last checkpoint is {good.relative_to(tmp_path)}" in note
    assert "unilab train --resume" in note
    assert json.loads((trained / "stages.json").read_text())["state"] == "failed"
    outcome = cli(*arguments[:3], cwd=tmp_path)
    assert outcome.code == 0, outcome
    assert last_checkpoint(trained)["progress"]["iteration"] == 5


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
