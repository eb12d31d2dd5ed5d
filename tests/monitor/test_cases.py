"""Real runs that were made slow in one way each, and a run that was stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runners.support import TINY, Process, cli, only_run, train
from unilab.config import config_dir

SLOW_TASK = '''\
"""A cart-pole with a reward term that costs far more than its physics."""

import math

from unilab.tasks.base import Task
from unilab.tasks.cartpole import TASK as CARTPOLE
from unilab_kernels.terms import reward


@reward
def costly(pole_angle, rounds):
    """A sum that takes its time, about 0."""
    total = 0.0
    for i in range(int(rounds)):
        total += math.sin(pole_angle + i)
    return total


TASK = Task(robot=CARTPOLE.robot, describe=CARTPOLE.describe)
'''
CALM = ("runtime.threads=1", "runtime.learner_threads=1", "log.tensorboard=false")


def report_of(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "monitor" / "report.json").read_text())
    return values


def judged(tmp_path: Path, *overrides: str, task: str = "cartpole") -> dict[str, Any]:
    """Train a small run, and let the monitor judge it when it is over."""
    run = train(tmp_path, *CALM, "train.iterations=5", *overrides, task=task)
    done = cli("monitor", "--run", str(run), cwd=tmp_path)
    assert done.code == 0, done
    verdict: dict[str, Any] = report_of(run)["verdict"]
    assert f"bound by {verdict['sentence'].removeprefix('bound by ')[:20]}" in done.out
    return verdict


def test_slow_physics_is_found(tmp_path):
    verdict = judged(tmp_path, "physics.substeps=400", "physics.timestep_s=0.0001")
    assert verdict["bound_by"] == "physics"
    assert verdict["costs"]["physics"]["speedup"] > 2
    assert "physics.substeps" in verdict["faster"][0]["keys"]


def test_a_slow_kernel_is_found(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_TASK)
    yaml = (config_dir() / "cartpole.yaml").read_text()
    term = "rewards:\n  costly: {weight: 0.0001, rounds: 100000}\n"
    (tmp_path / "slow.yaml").write_text(yaml.replace("rewards:\n", term))
    verdict = judged(tmp_path, task="slow.py")
    assert verdict["bound_by"] == "kernel"
    assert "rewards" in verdict["faster"][0]["keys"]


def test_a_slow_learner_is_found(tmp_path):
    wide = [f"learners.ppo.{name}_hidden=[512,512]" for name in ("actor", "critic")]
    verdict = judged(tmp_path, *wide, "learners.ppo.epochs=10")
    assert verdict["bound_by"] == "learner"
    assert verdict["balance"] > 2
    assert verdict["learner_flops"] > 1e8
    assert "learners.ppo.epochs" in verdict["faster"][0]["keys"]


CROWDED = (
    "physics.num_envs=1024", "learners.ppo.num_steps=8", "episode.length_s=10",
    "runtime.learner_threads=1", "runtime.allow_oversubscription=true", "physics.substeps=40",
    "physics.timestep_s=0.0005", "train.iterations=1000000",
)  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are told apart on Linux")
def test_too_many_threads_and_then_a_stopped_process_are_found(tmp_path):
    """One process serves both: it is watched while it runs, and while it then stands still."""
    count = 12 * len(os.sched_getaffinity(0))
    running = Process("train", "cartpole", *TINY, *CROWDED, f"runtime.threads={count}",
                      cwd=tmp_path)  # fmt: skip
    try:
        running.wait_for_iteration(2)
        watch = Process("monitor", "--pid", str(running.popen.pid), "--interval", "0.5",
                        cwd=tmp_path)  # fmt: skip
        watch.wait_for("watched")
        time.sleep(1.5)
        assert running.popen.poll() is None  # it has not noticed
        running.popen.send_signal(signal.SIGSTOP)
        assert watch.popen.wait(60) == 1, watch.outcome()
    finally:
        running.popen.kill()
        running.popen.wait()
    out = " ".join(watch.outcome().out.split())
    assert "stopped by a signal" in out
    run = only_run(tmp_path)
    found = report_of(run)
    assert found["watched"]["end"] == "stalled"
    assert found["watched"]["stalled_s"] < 10
    assert found["verdict"]["bound_by"] == "oversubscribed threads", found
    assert found["verdict"]["stage"] == "physics"
    assert "runtime.threads" in found["verdict"]["faster"][0]["keys"]
    assert found["cpu"]["pools"]["physics pool"]["threads"] == count
    killed = cli("monitor", "--run", "latest", cwd=tmp_path)
    assert killed.code == 1
    assert "without a word" in killed.out
