"""Runs the command line for tests, in this process or in one of its own, and compares runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.cli import main
from unilab.runs import list_checkpoints, list_runs

# A cart-pole run of milliseconds an iteration. Nothing in it needs the kernels compiled anew.
TINY = (
    "physics.num_envs=8",
    "episode.length_s=0.4",  # 20 control steps: episodes end inside and across rollouts
    "learners.ppo.num_steps=6",
    "learners.ppo.epochs=2",
    "learners.ppo.minibatches=2",
    "learners.ppo.actor_hidden=[16]",
    "learners.ppo.critic_hidden=[16]",
    "evaluation.at_end=false",
    "evaluation.video=false",
    "evaluation.episodes=4",
    "evaluation.episode_length_s=0.5",
    "device=cpu",
    "seed=7",
)


def _small_replay(learner: str, *more: str) -> tuple[str, ...]:
    """A learner whose replay of 18 steps is full before its fourth iteration ends."""
    keys = ("num_steps=6", "batch_size=16", "updates_per_step=2", "replay_capacity=18",
            "warmup_steps=4", "n_steps=3", "actor_every=2", *more)  # fmt: skip
    words = tuple(f"learners.{learner}.{key}" for key in keys)
    return (f"learner={learner}", *words, "checkpoint.replay=true")


_NETS = ("actor_hidden=[16]", "critic_hidden=[16]")
_APPO = ("collection=sync", "num_steps=6", "epochs=2", "minibatches=2", *_NETS)
# What makes a run of TINY one of another learner, that resumes bit for bit.
LEARNERS = {
    "ppo": (),
    "appo": ("learner=appo", *(f"learners.appo.{key}" for key in _APPO)),
    "sac": _small_replay("sac", *_NETS),
    "td3": _small_replay("td3", *_NETS),
    "flashsac": _small_replay("flashsac", "actor_width=8", "critic_width=8"),
}
# Of a line of metrics, what depends on the clock and the process and not on the training.
CLOCK = ("time_unix_s", "elapsed_s", "system/")  # and every time in ms
EXIT_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


def cli(*arguments: str, cwd: Path) -> Outcome:
    """Run the command line in this process, as `unilab` would. Its own failures are raised."""
    out, err = io.StringIO(), io.StringIO()
    environment, argv = dict(os.environ), sys.argv
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    sys.argv = ["unilab", *arguments]
    try:
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
        code = 0
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(threads)
    return Outcome(code, out.getvalue(), err.getvalue())


def train(cwd: Path, *overrides: str, task: str = "cartpole") -> Path:
    """Train a tiny run in this process and return its directory."""
    before = set(list_runs(cwd / "runs"))
    outcome = cli("train", task, *TINY, *overrides, cwd=cwd)
    assert outcome.code == 0, outcome
    (run,) = set(list_runs(cwd / "runs")) - before
    return run


class Process:
    """`unilab` in a process of its own."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.cwd = cwd
        self.log = (cwd / "stdout.txt", cwd / "stderr.txt")
        with self.log[0].open("w") as out, self.log[1].open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "unilab.cli", *arguments],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(env or {})},
            )

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        """Wait until `text` is on stdout."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log[0].read_text():
            assert self.popen.poll() is None, self.outcome()
            assert time.monotonic() < deadline, self.outcome()
            time.sleep(0.01)

    def wait_for_iteration(self, iteration: int, timeout_s: float = 120.0) -> None:
        """Wait until the metrics of an iteration are written."""
        deadline = time.monotonic() + timeout_s
        while True:
            for run in list_runs(self.cwd / "runs"):
                path = run / "metrics.jsonl"
                if path.is_file() and path.read_bytes().count(b"\n") >= iteration:
                    return
            assert self.popen.poll() is None, self.outcome()
            assert time.monotonic() < deadline, self.outcome()
            time.sleep(0.002)

    def end(self, number: signal.Signals, timeout_s: float = 60.0) -> float:
        """Send a signal, wait for the end, and return how long that took in s."""
        start = time.monotonic()
        self.popen.send_signal(number)
        self.popen.wait(timeout_s)
        return time.monotonic() - start

    def outcome(self) -> Outcome:
        """What it has written and how it ended."""
        out, err = (path.read_text() for path in self.log)
        return Outcome(self.popen.poll() or 0, out, err)


def only_run(cwd: Path) -> Path:
    """The one run there is."""
    (run,) = list_runs(cwd / "runs")
    return run


def last_checkpoint(run: Path) -> dict[str, Any]:
    """Read the latest checkpoint, as strictly as torch can."""
    content: dict[str, Any] = torch.load(list_checkpoints(run)[-1][1], weights_only=True)
    return content


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor and number in nested dicts, by its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}.{key}")
    elif isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, int | float):
        yield path, torch.tensor(value, dtype=torch.float64)


def assert_same_state(run: Path, other: Path) -> None:
    """The latest checkpoints agree in every bit of learner, envs, counters and replay."""
    contents = [last_checkpoint(run), last_checkpoint(other)]
    for content in contents:
        content["progress"].pop("wall_s")
    parts = ("progress", "learner", "pipeline", "runner")
    names = [dict(tensors({k: c[k] for k in parts})) for c in contents]
    assert names[0].keys() == names[1].keys()
    assert len(names[0]) > 30
    for name, value in names[0].items():
        assert value.dtype == names[1][name].dtype, name
        assert value.numpy().tobytes() == names[1][name].numpy().tobytes(), name


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if not (k.startswith(CLOCK) or k.endswith("_ms"))}
        for line in lines
    ]


def assert_same_run(run: Path, other: Path) -> None:
    """Two runs have the same state and wrote down the same numbers."""
    assert metrics(run) == metrics(other)
    assert_same_state(run, other)


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
