"""Files of a run that are being written, cut, damaged, or written by another version."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.monitor.support import write_run
from unilab.monitor import run_files
from unilab.monitor.rows import StageTotals, parse_row, rate
from unilab.monitor.run_files import RunFiles
from unilab.monitor.run_state import parse_status


def line(iteration: int, **values: float) -> str:
    return json.dumps({"iteration": iteration, "stage/physics_ms": 5.0, **values}) + "\n"


def numbers(files: RunFiles) -> list[int]:
    return [row.iteration for row in files.poll()]


def test_rows_come_once_and_a_line_being_written_waits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    files = RunFiles(tmp_path, whole=True)
    assert numbers(files) == []
    path.write_text(line(1) + line(2)[:10])
    assert numbers(files) == [1]
    path.write_text(line(1) + line(2) + line(3))
    assert numbers(files) == [2, 3]
    assert numbers(files) == []


def test_rows_know_how_many_iterations_they_are_about(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line(5) + line(10))
    rows = RunFiles(tmp_path, whole=True).poll()
    assert [row.iterations for row in rows] == [5, 5]
    sums = StageTotals()
    for row in rows:
        sums.add(row)
    assert sums.per_iteration().exposed_ms == {"physics": 1.0}


def test_a_damaged_line_is_left_out_with_the_row_after_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line(1) + "{nonsense\n[]\n" + line(4) + line(5))
    files = RunFiles(tmp_path, whole=True)
    assert numbers(files) == [1, 5]
    assert files.damaged_lines == 2


def test_a_long_file_of_a_run_that_goes_on_is_read_from_near_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "TAIL_BYTES", 200)
    (tmp_path / "metrics.jsonl").write_text("".join(line(i) for i in range(1, 101)))
    found = numbers(RunFiles(tmp_path, whole=False))
    assert found == list(range(found[0], 101))
    assert 96 < found[0] <= 100
    assert numbers(RunFiles(tmp_path, whole=True)) == list(range(1, 101))


def test_a_file_that_a_resume_has_cut_is_followed_from_its_new_end(tmp_path):
    path, partial = tmp_path / "metrics.jsonl", tmp_path / "new"
    path.write_text("".join(line(i) for i in range(1, 9)))
    files = RunFiles(tmp_path, whole=True)
    assert len(numbers(files)) == 8
    partial.write_text(line(1) + line(2))
    os.replace(partial, path)
    assert numbers(files) == []
    with path.open("a") as file:
        file.write(line(3) + line(4))
    assert numbers(files) == [4]  # how many iterations the first one is about is not known


def test_the_last_status_stays_while_a_new_one_cannot_be_read(tmp_path):
    write_run(tmp_path)
    files = RunFiles(tmp_path, whole=True)
    files.poll()
    assert files.status is not None
    assert files.status.setup.plan is not None
    assert files.status.setup.plan.together == 2
    (tmp_path / "stages.json").write_text("{broken")
    files.poll()
    assert files.status.iteration == 6
    assert "cannot be read" in (files.status_problem or "")


def test_a_status_of_another_version_gives_what_it_has():
    old = parse_status({"state": "running", "pid": 7, "setup": {"plan": {"cpus": 2}, "device": 3}})
    assert (old.state, old.pid, old.beats, old.setup.plan) == ("running", 7, None, None)
    assert old.setup.device == "cpu"
    with pytest.raises(Exception, match="names no state"):
        parse_status({"state": "running"})


def test_rate_is_by_the_runs_own_clock():
    rows = [
        parse_row({"iteration": i, "elapsed_s": 2.0 * i, "counter/env_steps": 100.0 * i}, i - 1)
        for i in (1, 2, 5)
    ]
    assert rate([row for row in rows if row is not None]) == pytest.approx(50.0)
    assert rate([]) is None


def test_numbers_that_are_not_finite_or_no_numbers_are_unknown(tmp_path: Path):
    row = parse_row({"iteration": 2, "elapsed_s": "x", "stage/a_ms": None, "busy/b_ms": 3}, 1)
    assert row is not None
    assert (row.elapsed_s, row.exposed_ms, row.busy_ms) == (0.0, {}, {"b": 3.0})
