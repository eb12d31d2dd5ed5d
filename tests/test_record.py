"""The recorder: its files, what they hold after a kill and a resume, and what a person sees."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unilab.errors import ConfigError
from unilab.record import Recorder, read_metrics, read_status
from unilab.record.pace import Pace
from unilab.record.progress import Snapshot, duration, number, page, plain_lines

NAN = float("nan")


def open_recorder(folder: Path, **changes: Any) -> Recorder:
    arguments: dict[str, Any] = {
        "total_iterations": 10,
        "tensorboard": False,
        "console": Console(file=io.StringIO()),
    }
    return Recorder(folder, **(arguments | changes))


def write(recorder: Recorder, iteration: int, **metrics: float) -> None:
    values = {"counter/env_steps": 100.0 * iteration, "episode/return": 1.5 * iteration}
    values |= {name.replace("__", "/"): value for name, value in metrics.items()}
    recorder.write(iteration, values, {"stage/kernel_ms": 2.5, "busy/physics_ms": 7.0})


def strict_lines(path: Path) -> list[dict[str, Any]]:
    """Parse with a reader that refuses NaN and Infinity, which are not JSON."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    lines = path.read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def test_each_iteration_is_one_line_that_can_be_read_at_once(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as recorder:
        for i in (1, 2, 3):
            write(recorder, i)
            lines = strict_lines(tmp_path / "metrics.jsonl")
            assert [line["iteration"] for line in lines] == list(range(1, i + 1))
    assert lines[2]["episode/return"] == 4.5
    assert lines[2]["stage/kernel_ms"] == 2.5
    assert 0 < lines[0]["elapsed_s"] < lines[2]["elapsed_s"]
    assert "non_finite" not in lines[0]


def test_values_that_are_not_finite_are_null_and_named(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as recorder:
        write(recorder, 1, loss__value=NAN, loss__policy=-math.inf, policy__kl=0.5)
    (line,) = strict_lines(tmp_path / "metrics.jsonl")
    assert line["loss/value"] is None
    assert line["loss/policy"] is None
    assert line["policy/kl"] == 0.5
    assert line["non_finite"] == ["loss/value", "loss/policy"]


def test_killed_and_resumed_run_has_the_lines_of_one_that_was_not(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = open_recorder(tmp_path)
    for i in range(1, 6):
        write(first, i)
    with path.open("a") as file:  # a line that was being written when the power went
        file.write('{"iteration": 6, "loss/val')
    before = strict_lines_until_torn(path)

    with open_recorder(tmp_path, resume_iteration=3) as second:
        assert second.elapsed_s >= before[2]["elapsed_s"]
        for i in range(4, 8):
            write(second, i)
    after = strict_lines(path)
    assert [line["iteration"] for line in after] == [1, 2, 3, 4, 5, 6, 7]
    assert after[:3] == before[:3]
    times = [line["elapsed_s"] for line in after]
    assert times == sorted(times)
    assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "stages.json"]


def strict_lines_until_torn(path: Path) -> list[dict[str, Any]]:
    return list(read_metrics(path))


def test_resume_at_the_end_of_the_file_keeps_every_line(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as recorder:
        write(recorder, 1)
        write(recorder, 2)
    before = (tmp_path / "metrics.jsonl").read_text()
    with open_recorder(tmp_path, resume_iteration=2):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_new_run_does_not_mix_with_an_old_one(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as recorder:
        write(recorder, 1)
    with pytest.raises(ConfigError, match="already holds the metrics of a run"):
        open_recorder(tmp_path)
    assert len(strict_lines(tmp_path / "metrics.jsonl")) == 1


def test_damage_before_the_last_line_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iterat\n{"iteration": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 2: damaged"):
        open_recorder(tmp_path, resume_iteration=3)
    assert path.read_text().count("\n") == 3


def test_iterations_must_grow(tmp_path: Path) -> None:
    with open_recorder(tmp_path, resume_iteration=4) as recorder:
        with pytest.raises(AssertionError, match="iteration 4 after 4"):
            write(recorder, 4)
        write(recorder, 5)


def test_status_file_tells_an_outside_reader_where_the_run_is(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path, total_iterations=4, max_time_s=1000)
    assert read_status(tmp_path)["state"] == "running"
    assert read_status(tmp_path)["iteration"] == 0
    write(recorder, 1)
    write(recorder, 2, counter__diverged=NAN)
    status = read_status(tmp_path)
    assert status["iteration"] == 2
    assert status["total_iterations"] == 4
    assert status["pid"] == os.getpid()
    assert status["env_steps"] == 200
    assert status["env_steps_per_s"] > 0
    assert 0 < status["eta_s"] < 1000
    assert status["exposed_ms"] == {"kernel": 2.5}
    assert status["busy_ms"] == {"physics": 7.0}
    assert status["counters"] == {"env_steps": 200.0, "diverged": None}
    recorder.close()
    assert read_status(tmp_path)["state"] == "finished"
    assert read_status(tmp_path)["exposed_ms"] == {"kernel": 2.5}


def test_beats_tell_that_a_run_goes_on_between_iterations(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path, setup={"host": "here", "plan": {"cpus": 2}})
    write(recorder, 1)
    before = read_status(tmp_path)
    recorder.beat()
    recorder.beat()
    after = read_status(tmp_path)
    assert after["beats"] == before["beats"] + 2
    assert after["beat_unix_s"] >= before["beat_unix_s"]
    assert after["iteration"] == 1
    assert after["exposed_ms"] == {"kernel": 2.5}
    assert after["setup"] == {"host": "here", "plan": {"cpus": 2}}
    write(recorder, 2)
    assert read_status(tmp_path)["beats"] == after["beats"]
    recorder.close()
    recorder.beat()  # it has ended, whatever still runs
    assert read_status(tmp_path)["state"] == "finished"
    assert read_status(tmp_path)["beats"] == after["beats"]


def test_a_beat_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorder = open_recorder(folder)
    folder.rename(tmp_path / "moved")
    recorder.beat()
    (tmp_path / "moved").rename(folder)
    recorder.beat()
    assert read_status(folder)["beats"] == 2


@pytest.mark.parametrize("text", ["{broken", "[]"])
def test_a_damaged_status_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "stages.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stages\.json"):
        read_status(tmp_path)


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_status_file_says_how_a_run_ended(
    tmp_path: Path, error: type[BaseException], state: str
) -> None:
    recorder = open_recorder(tmp_path)
    write(recorder, 1)
    assert _raises_through(recorder, error)
    assert recorder.state == state
    assert read_status(tmp_path)["state"] == state
    recorder.close()  # a second close does not change it
    assert read_status(tmp_path)["state"] == state


def _raises_through(recorder: Recorder, error: type[BaseException]) -> bool:
    try:
        with recorder:
            raise error
    except error:
        return True
    return False


def test_status_of_no_run_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the directory of a run"):
        read_status(tmp_path)


def test_tensorboard_reads_what_a_resumed_run_left(tmp_path: Path) -> None:
    first = open_recorder(tmp_path, tensorboard=True)
    for i in range(1, 6):
        write(first, i, reward__alive=float(i))
    first.close()
    with open_recorder(tmp_path, tensorboard=True, resume_iteration=3) as second:
        for i in range(4, 8):
            write(second, i, reward__alive=10.0 * i)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    scalars = [(e.step, e.value) for e in events.Scalars("reward/alive")]
    assert scalars == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0), (6, 60.0), (7, 70.0)]
    assert "stage/kernel_ms" in events.Tags()["scalars"]


def test_recording_starts_no_thread_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, threading\n"
        "from unilab.record import Recorder\n"
        "assert 'tensorboard' not in sys.modules\n"
        f"r = Recorder({str(tmp_path)!r}, total_iterations=2, tensorboard=True)\n"
        "r.write(1, {'episode/return': 1.0}, {})\n"
        "assert threading.active_count() == 1\n"
        "r.close()\n"
        "bad = {'tensorflow', 'torch', 'mujoco', 'matplotlib', 'grpc'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pace_knows_speed_and_time_left_by_iterations_or_by_time() -> None:
    pace = Pace(total_iterations=100, max_time_s=None)
    assert pace.eta_s is None
    pace.mark(1, 30.0, 10.0)  # the first iteration compiles; it is not part of the rate
    assert pace.eta_s is None
    assert pace.env_steps_per_s is None
    pace.mark(2, 32.0, 20.0)
    assert pace.eta_s == pytest.approx(98 * 2.0)
    assert pace.env_steps_per_s == pytest.approx(5.0)
    limited = Pace(total_iterations=100, max_time_s=60.0)
    limited.mark(1, 30.0, None)
    assert limited.eta_s == pytest.approx(30.0)
    limited.mark(2, 32.0, None)
    assert limited.eta_s == pytest.approx(28.0)
    limited.mark(100, 40.0, None)
    assert limited.eta_s == 0.0


def test_pace_forgets_what_is_long_ago() -> None:
    pace = Pace(total_iterations=300, max_time_s=None)
    for i in range(1, 101):
        pace.mark(i, 10.0 * i, None)
    for i in range(101, 201):
        pace.mark(i, 1000.0 + (i - 100), None)
    assert pace.eta_s == pytest.approx(100.0)


SNAPSHOT = Snapshot(
    iteration=31,
    total_iterations=100,
    elapsed_s=65.0,
    eta_s=3725.0,
    metrics={
        "counter/env_steps": 2.5e6,
        "counter/diverged": 3.0,
        "system/env_steps_per_s": 24310.0,
        "episode/return": 12.34,
        "reward/track_lin_vel": 1.52,
        "reward/action_rate": -0.02,
        "loss/value": NAN,
        "policy/kl": 0.0103,
    },
    times={"stage/physics_ms": 210.4, "busy/physics_ms": 400.0},
)


def test_plain_lines_tell_everything_without_colours() -> None:
    head, detail = plain_lines(SNAPSHOT)
    assert head.startswith("[31/100  31%] 1:05 elapsed, ETA 1:02:05 | steps/s 24.31k, return 12.3")
    assert "policy/kl 0.0103" in head
    assert "rewards: track_lin_vel 1.52, action_rate -0.02" in detail
    assert "stages (ms): physics 210" in detail
    assert "\x1b" not in head + detail


def test_page_shows_every_term_within_the_width() -> None:
    file = io.StringIO()
    Console(file=file, width=140).print(page("go1_walk", SNAPSHOT, 140))
    text = file.getvalue()
    for part in ("31/100", "ETA 1:02:05", "env steps 2.5M", "track_lin_vel", "action_rate"):
        assert part in text
    for part in ("loss/value", "nan", "physics", "400", "counter/diverged"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 140


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.345, "12.3"), (812.0, "812"), (24310.0, "24.31k"), (3.1e-4, "3.1e-04")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
    assert number(-value).lstrip("-") == text


def test_durations() -> None:
    assert [duration(s) for s in (None, 7.4, 725.0, 11229.0)] == ["?", "0:07", "12:05", "3:07:09"]


def test_output_whose_reader_has_gone_does_not_end_the_run(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w", buffering=1) as file:
        recorder = open_recorder(tmp_path, console=Console(file=file))
        write(recorder, 1)
        write(recorder, 2)
        recorder.close()
    assert len(strict_lines(tmp_path / "metrics.jsonl")) == 2


SCRIPT = """
import sys
from unilab.record import Recorder
with Recorder(sys.argv[1], total_iterations=2, tensorboard=False) as r:
    for i in (1, 2):
        r.write(i, {"reward/alive": 0.5, "episode/return": float(i)}, {"stage/kernel_ms": 1.0})
"""


def test_without_a_terminal_lines_are_plain_whatever_the_environment(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "dumb"},
    )
    assert "\x1b" not in result.stdout
    assert "[2/2 100%]" in result.stdout
    assert "rewards: alive 0.5" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("stdio", ["<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_no_harm(tmp_path: Path, stdio: str) -> None:
    command = f'"$0" -c "$1" "$2" {stdio}'
    subprocess.run(["sh", "-c", command, sys.executable, SCRIPT, str(tmp_path)], check=True)
    assert len(strict_lines(tmp_path / "metrics.jsonl")) == 2


@pytest.mark.parametrize(("term", "live"), [("xterm", True), ("dumb", False)])
def test_on_a_terminal_the_page_is_live_unless_it_is_dumb(
    tmp_path: Path, term: str, live: bool
) -> None:
    reader, writer = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdin=writer,
        stdout=writer,
        check=True,
        env=environment | {"TERM": term, "COLUMNS": "120"},
    )
    os.close(writer)
    output = os.read(reader, 65536).decode()
    os.close(reader)
    assert ("\x1b[" in output) == live
    assert "alive" in output
    assert "2/2" in output
