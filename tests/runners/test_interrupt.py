"""Ctrl-C and SIGTERM at any moment: a quick end, exit code 130, and a run that goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.runners.support import (
    EXIT_DEADLINE_S,
    LEARNERS,
    TINY,
    Process,
    assert_same_run,
    cli,
    last_checkpoint,
    metrics,
    only_run,
    train,
)
from tests.runners.test_checkpoint import small_checkpoint
from unilab.record import read_status
from unilab.runners.interrupt import GRACE_S, RETRY_S, Interrupt
from unilab.runs import find_checkpoint

# One iteration takes long, in many control steps.
LONG = ("physics.num_envs=512", "learners.ppo.num_steps=4000", "learners.ppo.epochs=1")


def assert_quiet_end(process: Process, took_s: float) -> None:
    """It ended in time, with 130, few words, and nothing left running."""
    outcome = process.outcome()
    assert outcome.code == 130, outcome
    assert took_s < EXIT_DEADLINE_S, outcome
    assert len(outcome.err.splitlines()) < 5, outcome.err
    assert "Traceback" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("number", "learner"),
    [(signal.SIGINT, "ppo"), (signal.SIGTERM, "ppo"), (signal.SIGINT, "sac")],
)
def test_an_interrupted_run_ends_soon_and_goes_on_as_if_nothing_had_been(tmp_path, number, learner):
    """The loop of `sac` ends in the midst of an iteration, and goes on there."""
    words = (*TINY, *LEARNERS[learner])
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    process = Process("train", "cartpole", *words, "train.iterations=100000", cwd=stopped)
    process.wait_for_iteration(4)
    took_s = process.end(number)
    assert_quiet_end(process, took_s)
    run = only_run(stopped)
    iteration = last_checkpoint(run)["progress"]["iteration"]
    assert f"interrupted after iteration {iteration}; everything is saved" in process.outcome().out
    assert read_status(run)["state"] == "interrupted"
    assert len(metrics(run)) == iteration
    total = f"train.iterations={iteration + 3}"
    assert cli("train", "--resume", "latest", total, cwd=stopped).code == 0
    assert_same_run(train(whole, *LEARNERS[learner], total), run)


def test_a_long_first_iteration_is_cut_short_and_done_again(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    process = Process("train", "cartpole", *TINY, *LONG, "train.iterations=2", cwd=stopped)
    process.wait_for("run      ")
    run = only_run(stopped)
    while not (run / "stages.json").is_file():
        time.sleep(0.01)
    time.sleep(0.5)
    took_s = process.end(signal.SIGINT)
    assert_quiet_end(process, took_s)
    assert metrics(run) == []
    assert last_checkpoint(run)["progress"]["iteration"] == 0
    # Iterations of the same run, but short: the state at the start is what counts.
    short = ("learners.ppo.num_steps=5", "train.iterations=1")
    assert cli("train", "--resume", "latest", *short, cwd=stopped).code == 0
    expected = train(whole, *LONG, *short)
    assert_same_run(expected, run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_kernels_compile(tmp_path, number):
    env = {"UNILAB_CACHE_DIR": str(tmp_path / "cache")}  # nothing compiled yet
    process = Process("train", "cartpole", *TINY, cwd=tmp_path, env=env)
    process.wait_for("compiling")
    time.sleep(0.5)
    took_s = process.end(number)
    assert_quiet_end(process, took_s)
    assert not (tmp_path / "runs").exists()  # nothing was begun


@pytest.mark.parametrize("library", ["_multiarray_umath", "libtorch_cpu"])
def test_interrupted_in_the_midst_of_imports(tmp_path, library):
    """Raised there, an interrupt would surface as any error of any module."""
    process = Process("train", "cartpole", *TINY, cwd=tmp_path)
    maps = Path(f"/proc/{process.popen.pid}/maps")
    if not maps.is_file():
        process.popen.kill()
        pytest.skip("no /proc to see what is being imported")
    deadline = time.monotonic() + 60
    while library not in maps.read_text():
        assert time.monotonic() < deadline
    took_s = process.end(signal.SIGINT)
    assert_quiet_end(process, took_s)
    assert process.outcome().err == "interrupted\n"


def test_interrupted_in_the_final_evaluation(tmp_path):
    long = ("evaluation.at_end=true", "evaluation.episodes=4096", "evaluation.episode_length_s=500")
    process = Process("train", "cartpole", *TINY, "train.iterations=2", *long, cwd=tmp_path)
    process.wait_for("evaluating")
    time.sleep(0.5)
    took_s = process.end(signal.SIGTERM)
    assert_quiet_end(process, took_s)
    out = process.outcome().out
    assert "training is complete" in out
    assert "unilab eval --run" in out
    run = only_run(tmp_path)
    assert last_checkpoint(run)["progress"]["iteration"] == 2
    assert read_status(run)["state"] == "finished"
    assert not (run / "evaluation.json").exists()


def test_interrupted_in_the_video(tmp_path):
    film = ("evaluation.video=true", "evaluation.video_seconds=500")
    process = Process("train", "cartpole", *TINY, "train.iterations=2", *film, cwd=tmp_path)
    process.wait_for("rendering the video")
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.popen.pid).children(recursive=True)):
        assert time.monotonic() < deadline, process.outcome()
        time.sleep(0.01)
    time.sleep(1.0)
    if process.popen.poll() is not None and "video       none" in process.outcome().out:
        pytest.skip("no video can be made on this machine")
    took_s = process.end(signal.SIGINT)
    assert_quiet_end(process, took_s)
    _, alive = psutil.wait_procs(children, timeout=EXIT_DEADLINE_S)
    assert alive == []
    run = only_run(tmp_path)
    assert [path.name for path in run.iterdir() if path.suffix == ".mp4"] == []
    assert find_checkpoint(run).name == "iter_000002.pt"


def test_a_finished_run_ends_its_process_and_its_threads(tmp_path):
    plan = ("runtime.overlap=true", "runtime.groups=2", "runtime.threads=1", "runtime.shards=2",
            "physics.num_envs=512", "runtime.allow_oversubscription=true")  # fmt: skip
    process = Process("train", "cartpole", *TINY, *plan, "train.iterations=2", cwd=tmp_path)
    process.wait_for("checkpoint  ")  # its last words
    process.popen.wait(10.0)
    assert process.outcome().code == 0, process.outcome()


def test_between_iterations_an_interrupt_only_asks():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        assert interrupt.cut_at is None
        with pytest.raises(KeyboardInterrupt):  # the third: whoever sends it means it
            signal.raise_signal(signal.SIGINT)


def test_the_second_interrupt_cuts_an_iteration_at_once():
    start = small_checkpoint(3, None, None)
    with Interrupt() as interrupt:
        interrupt.resume_point = start
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.cut_at is start
        time.sleep(GRACE_S + 2 * RETRY_S)  # the end of the grace does not cut what saves the state


def test_an_iteration_that_begins_after_the_interrupt_is_cut_as_well():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        time.sleep(GRACE_S + RETRY_S / 2)  # a save that takes long
        start = interrupt.resume_point = small_checkpoint(3, None, None)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10 * RETRY_S)
        assert interrupt.cut_at is start


def test_what_signals_did_before_they_do_again(tmp_path: Path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupt():
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
