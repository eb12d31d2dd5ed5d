"""`unilab monitor` as it is called: what it refuses, what it starts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.monitor.support import write_run
from tests.runners.support import TINY, Process, cli, last_checkpoint, only_run
from unilab.record import read_status

ROOT = Path(__file__).resolve().parents[2]
LONG = (*TINY, "train.iterations=1000000")


@pytest.fixture
def run_dir(tmp_path):
    """A run that has finished."""
    folder = write_run(tmp_path / "runs" / "cartpole" / "2026-01-01_00-00-00")
    (folder / "config.yaml").write_text("broken: [")  # hints do without it
    return folder


def refused(tmp_path, *arguments):
    done = cli("monitor", *arguments, cwd=tmp_path)
    assert done.code == 2, done
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) < 6
    return done.err


def test_a_finished_run_is_judged_from_its_files(tmp_path, run_dir):
    done = cli("monitor", cwd=tmp_path)
    assert done.code == 0, done
    assert "bound by physics: 60% of an iteration of 100 ms, 1.5 x the next" in done.out
    assert "the run has finished" in done.out
    found = json.loads((run_dir / "monitor" / "report.json").read_text())
    assert found["env_steps_per_s"] == pytest.approx(5120.0)
    assert {path.name for path in (run_dir / "monitor").iterdir()} == {
        "report.html", "report.json", "report.png", "samples.csv",
    }  # fmt: skip
    assert cli("monitor", "--output", "elsewhere", cwd=tmp_path).code == 0
    assert (tmp_path / "elsewhere" / "report.html").is_file()


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("interrupted", 0), ("running", 1)])
def test_the_exit_code_says_how_a_run_ended(tmp_path, state, code):
    write_run(tmp_path / "runs" / "cartpole" / "a", state=state, pid=2**22 - 1)
    done = cli("monitor", "--run", "runs/cartpole/a", "--output", "o", cwd=tmp_path)
    assert done.code == 2  # a folder without config.yaml is no run
    (tmp_path / "runs" / "cartpole" / "a" / "config.yaml").write_text("")
    done = cli("monitor", "--run", "runs/cartpole/a", "--output", "o", cwd=tmp_path)
    assert done.code == code, done
    assert ("without a word" in done.out) == (state == "running")


def test_what_is_not_there_is_refused_with_what_is(tmp_path, run_dir):
    assert "cartpole/2026-01-01_00-00-00" in refused(tmp_path, "--run", "nope")
    assert "there is no such process" in refused(tmp_path, "--pid", str(2**22 - 1))
    assert "trains nothing" in refused(tmp_path, "--pid", str(os.getpid()))
    assert "nothing is stored as 'nope'" in refused(tmp_path, "--baseline", "nope")
    assert "--pid says all" in refused(tmp_path, "--pid", "1", "cartpole")
    assert "--keep is for a run" in refused(tmp_path, "--run", "latest", "--keep")
    assert "watched as it is" in refused(tmp_path, "--run", "latest", "train.iterations=3")
    (run_dir / "stages.json").unlink()
    (run_dir / "metrics.jsonl").unlink()
    assert "nothing was trained there" in refused(tmp_path, "--run", "latest")


def test_an_output_that_cannot_be_written_is_refused(tmp_path, run_dir):
    (tmp_path / "file").write_text("")
    assert "--output file" in refused(tmp_path, "--output", "file")


def test_damaged_files_give_what_there_is_and_a_line_on_what_is_not(tmp_path, run_dir):
    (run_dir / "stages.json").write_text('{"state": "runn')
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text() + "\x00\x00 garbage\n")
    done = cli("monitor", cwd=tmp_path)
    assert done.code == 1, done
    assert "stages.json cannot be read" in " ".join(done.out.split())
    assert "1 damaged line(s)" in done.out
    assert "bound by physics" in done.out


def test_a_run_without_a_finished_iteration_gets_no_verdict_but_a_report(tmp_path, run_dir):
    (run_dir / "metrics.jsonl").write_text("")
    done = cli("monitor", cwd=tmp_path)
    assert done.code == 0, done
    assert "no verdict yet" in done.out


def test_baselines_decide_the_exit_code(tmp_path, run_dir):
    assert cli("monitor", cwd=tmp_path).code == 0
    stored = json.loads((run_dir / "monitor" / "report.json").read_text())

    def against(**changes):
        (tmp_path / "base.json").write_text(json.dumps(stored | changes))
        return cli("monitor", "--baseline", "base.json", cwd=tmp_path)

    same = against()
    assert (same.code, "is 1.00 x" in same.out) == (0, True)
    slower = against(env_steps_per_s=10_000.0)
    assert (slower.code, "more than 10% slower" in " ".join(slower.out.split())) == (1, True)
    foreign = against(machine={"cpu": "PDP-11", "cpus": 1, "gpu": None})
    assert foreign.code == 2
    assert "from another machine" in foreign.err  # at once, not only after a long watch
    assert "bound by physics" in foreign.out  # and what can be said is said
    (tmp_path / "base.json").write_text("{")
    assert "cannot be read" in refused(tmp_path, "--baseline", "base.json")


def test_a_run_is_started_and_watched_and_ctrl_c_is_handed_on_to_it(tmp_path):
    # In a process of its own: the monitor lowers its priority.
    watch = Process("monitor", "--interval", "0.5", "--", "train", "cartpole", *LONG, "--name",
                    "wide", cwd=tmp_path)  # fmt: skip
    watch.wait_for("watched")
    run = only_run(tmp_path)
    assert run.name.endswith("_wide")
    pid = read_status(run)["pid"]
    assert psutil.Process(pid).ppid() == watch.popen.pid
    assert os.getsid(pid) == pid  # no signal of the terminal reaches it but through the monitor
    while read_status(run)["beats"] < 2:
        time.sleep(0.05)
    watch.end(signal.SIGINT)
    assert watch.outcome().code == 130, watch.outcome()
    assert "has ended with exit code 130" in " ".join(watch.outcome().out.split())
    assert read_status(run)["state"] == "interrupted"
    assert last_checkpoint(run)["progress"]["iteration"] > 0
    assert "everything is saved" in (run / "monitor" / "train.log").read_text()
    found = json.loads((run / "monitor" / "report.json").read_text())
    assert found["watched"]["end"] == "interrupted"
    assert found["watched"]["iterations"] > 5
    assert found["verdict"]["bound_by"] is not None
    assert found["cpu"]["cores"] > 0
    assert found["run"]["num_envs"] == 8
    assert found["run"]["plan"]["cpus"] >= 1
    assert len((run / "monitor" / "samples.csv").read_text().splitlines()) > 2


@pytest.mark.slow
def test_a_run_that_was_started_is_asked_to_end_when_the_time_is_up(tmp_path):
    watch = Process("monitor", "cartpole", *LONG, "--for", "3", cwd=tmp_path)
    assert watch.popen.wait(120) == 0, watch.outcome()
    out = " ".join(watch.outcome().out.split())
    assert "has ended with exit code 130" in out
    assert read_status(only_run(tmp_path))["state"] == "interrupted"


@pytest.mark.slow
def test_killing_the_monitor_leaves_the_run_alone(tmp_path):
    where = {"TMPDIR": str(tmp_path)}  # the run's output stays behind there
    watch = Process("monitor", "cartpole", *LONG, cwd=tmp_path, env=where)
    watch.wait_for("watched")
    run = only_run(tmp_path)
    process = psutil.Process(read_status(run)["pid"])
    try:
        watch.end(signal.SIGKILL)
        iteration = read_status(run)["iteration"]
        deadline = time.monotonic() + 30
        while read_status(run)["iteration"] <= iteration:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = Process("monitor", "--pid", str(process.pid), cwd=tmp_path)
        second.wait_for("watched")
        second.end(signal.SIGINT)  # ends the watch of a run that the monitor did not start
        assert second.outcome().code == 0, second.outcome()
        assert "the run goes on" in second.outcome().out
        third = Process("monitor", "--run", "latest", "--for", "2", cwd=tmp_path)
        assert third.popen.wait(60) == 0, third.outcome()
        assert "the watch is over; the run goes on" in third.outcome().out
        assert process.is_running()
        assert read_status(run)["state"] == "running"
    finally:
        process.send_signal(signal.SIGTERM)
        psutil.wait_procs([process], timeout=30)
    assert read_status(run)["state"] == "interrupted"


def test_a_mistake_in_the_training_is_shown_in_its_own_words(tmp_path):
    done = cli("monitor", "cartpole", "physics.nun_envs=4", cwd=tmp_path)
    assert done.code == 2
    assert "error: command line: physics.nun_envs: unknown key" in done.err
    assert "physics.num_envs" in done.err


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no users to change to")
def test_a_process_of_another_user_is_refused_with_a_way_out():
    """Permission is taken away for real: as nobody, or as whoever we are beside process 1."""
    code = (
        "import os\n"
        "from unilab.monitor.attach import attach_to_pid\n"
        "from unilab.errors import ConfigError\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "try: attach_to_pid(1)\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "may not be read" in done.stdout
    assert "--run" in done.stdout


def test_the_shell_script_has_help_and_passes_on_what_it_is_given(tmp_path, run_dir):
    script = ROOT / "benchmark" / "monitor_benchmark.sh"
    environment = {**os.environ, "PYTHON": sys.executable}

    def call(*arguments):
        return subprocess.run(
            [script, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    helped = call("--help")
    assert helped.returncode == 0
    assert "monitor_benchmark.sh go1_walk" in helped.stdout
    done = call("--run", "latest")
    assert done.returncode == 0, done.stderr
    assert "bound by physics" in done.stdout
    assert call().returncode == 2
    assert call("--pid", "nope").returncode == 2
