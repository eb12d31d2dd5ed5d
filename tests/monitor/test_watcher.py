"""A run that is followed: its end, its process, and what cannot be seen of either."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from tests.monitor.support import RecordedNvml, write_run
from unilab.monitor import recording as ends
from unilab.monitor.attach import Target, attach_to_run
from unilab.monitor.gpu import NvmlGpu
from unilab.monitor.watcher import Watcher


class Unreadable(psutil.Process):
    """This process, as a system shows it that does not let its counters be read."""

    def status(self) -> NoReturn:
        raise psutil.AccessDenied(self.pid)


@pytest.fixture
def child():
    """A process that waits."""
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.wait()


def change(run_dir: Path, **values: object) -> None:
    path = run_dir / "stages.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_line(run_dir: Path, iteration: int) -> None:
    path = run_dir / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    line = last | {"iteration": iteration, "elapsed_s": 0.2 * iteration,
                   "counter/env_steps": 512.0 * iteration}  # fmt: skip
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def running(tmp_path, pid):
    run_dir = write_run(tmp_path, state="running", pid=pid)
    change(run_dir, beat_unix_s=time.time(), time_unix_s=time.time(), beats=1)
    return run_dir


def test_only_what_comes_while_it_is_watched_counts(tmp_path, child):
    run_dir = running(tmp_path, child.pid)
    target = attach_to_run(run_dir)
    assert target.process is not None
    watcher = Watcher(target)
    assert watcher.recording.measured().totals.iterations == 5  # history, without the warm-up
    assert watcher.tick() is None
    add_line(run_dir, 7)
    add_line(run_dir, 8)
    assert watcher.tick() is None
    sample = watcher.sample()
    assert sample.totals is not None
    assert sample.totals.iterations == 2
    assert sample.cpu is not None
    assert sample.cpu.cores < 0.5
    assert watcher.recording.measured().totals.iterations == 2
    # From iteration 6 after 0.6 s to iteration 8 after 1.6 s.
    assert watcher.recording.env_steps_per_s == pytest.approx(2 * 512 / 1.0)


@pytest.mark.parametrize("word", ["finished", "failed", "interrupted"])
def test_the_runs_own_word_on_its_end_is_taken(tmp_path, child, word):
    run_dir = running(tmp_path, child.pid)
    watcher = Watcher(attach_to_run(run_dir))
    assert watcher.tick() is None
    change(run_dir, state=word)
    child.kill()
    child.wait()
    assert watcher.tick() == word


def test_a_process_that_ends_without_a_word_was_killed(tmp_path, child):
    watcher = Watcher(attach_to_run(running(tmp_path, child.pid)))
    assert watcher.tick() is None
    child.kill()
    child.wait()
    assert watcher.sample().cpu is None
    assert watcher.tick() == ends.KILLED
    assert watcher.recording.end == ends.KILLED


def test_a_number_that_another_process_has_taken_over_is_not_the_run(tmp_path, child):
    run_dir = running(tmp_path, child.pid)
    began = psutil.Process(child.pid).create_time()
    change(run_dir, time_unix_s=began - 1000, beat_unix_s=began - 1000)
    target = attach_to_run(run_dir)
    assert (target.process, target.goes_on) == (None, False)
    assert Watcher(target).tick() == ends.KILLED


def test_a_run_on_another_machine_is_followed_by_its_files(tmp_path):
    run_dir = running(tmp_path, 1)
    change(run_dir, setup={"host": "somewhere-else", "device": "cpu"})
    target = attach_to_run(run_dir)
    assert target.goes_on
    watcher = Watcher(target)
    add_line(run_dir, 7)
    assert watcher.tick() is None
    assert watcher.sample().cpu is None
    assert "goes on on somewhere-else" in watcher.recording.problems[0]
    assert watcher.recording.measured().totals.iterations == 1
    change(run_dir, state="finished")
    assert watcher.tick() == ends.FINISHED


def test_counters_that_may_not_be_read_are_said_so_and_the_rest_is_given(tmp_path):
    run_dir = running(tmp_path, psutil.Process().pid)
    watcher = Watcher(Target(run_dir, Unreadable(), None, goes_on=True))
    add_line(run_dir, 7)
    assert watcher.tick() is None
    sample = watcher.sample()
    assert sample.cpu is None
    assert sample.totals is not None
    (problem,) = watcher.recording.problems
    assert "CPU figures are missing" in problem
    assert "owner" in problem


def test_a_gpu_is_read_with_every_sample(tmp_path, child):
    gpu = NvmlGpu(RecordedNvml(gpm=True), "1234")
    watcher = Watcher(attach_to_run(running(tmp_path, child.pid)), gpu)
    watcher.sample()
    watcher.sample()
    measured = watcher.recording.measured().gpu
    assert measured is not None
    assert measured.sm_active_fraction == pytest.approx(0.21)
    assert watcher.recording.gpu_name == "NVIDIA H200"
    watcher.close()


def test_a_run_on_a_gpu_without_nvml_says_what_to_install(tmp_path, child, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    run_dir = running(tmp_path, child.pid)
    change(run_dir, setup={"device": "cuda:0", "gpu_uuid": "1234"})
    watcher = Watcher(attach_to_run(run_dir))
    watcher.tick()
    assert watcher.sample().gpu is None
    assert any("unilab-engine[gpu]" in problem for problem in watcher.recording.problems)
