"""The report of a watch: strict JSON, a page that needs nothing else, a picture, a CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest

from tests.monitor.support import CPU, SETUP, RecordedNvml, row, status, totals
from unilab.config import load_config
from unilab.monitor.csv_file import CsvFile
from unilab.monitor.gpu import NvmlGpu
from unilab.monitor.machine import describe_machine
from unilab.monitor.page import moment, side_by_side, wrap
from unilab.monitor.recording import Recording, Sample, StageSums, Thinned
from unilab.monitor.report import Report, summary, write_report
from unilab.monitor.stall import Stall
from unilab.monitor.verdict import judge


def sample(t: float, *, gpu: bool) -> Sample:
    reading = NvmlGpu(RecordedNvml(gpm=True), "1234").read() if gpu else None
    times = totals({"physics": 60.0, "learn": 40.0, "unheard_of": 3.0}, {"physics": 59.0})
    return Sample(1000.0 + t, t, status(iteration=int(t)), times, 5120.0, CPU, reading)


def recording(*, samples: int = 5, rows: int = 8, gpu: bool = False) -> Recording:
    made = Recording(begin_unix_s=1000.0, seconds=10.0, end="finished")
    device = "cuda:0" if gpu else "cpu"
    made.status = status(state="finished", setup=replace(SETUP, device=device))
    made.gpu_name = "NVIDIA H200" if gpu else None
    for i in range(1, rows + 1):
        made.stages.add(row(i))
        made.rows.append(row(i))
    for t in range(samples):
        made.samples.append(sample(float(t), gpu=gpu))
        made.cpu.add(CPU)
    return made


def report(made: Recording) -> Report:
    config = load_config("cartpole").config
    machine = describe_machine(made.gpu_name)
    run_dir = Path("runs/cartpole/<first>")
    return Report(
        run_dir, made, judge(made.measured()), machine, config, ["unilab", "monitor"], None
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_a_report_is_whole(tmp_path, gpu):
    files = write_report(report(recording(gpu=gpu)), tmp_path)
    assert [path.name for path in files] == ["report.html", "report.png", "report.json"]
    found = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert found["env_steps_per_s"] == pytest.approx(5120.0)
    assert found["exposed_ms"] == {"physics": 60.0, "learn": 40.0}
    assert found["verdict"]["bound_by"] == "physics"
    assert found["verdict"]["faster"][0]["keys"] == ["physics.substeps", "physics.timestep_s"]
    assert found["run"]["task"] == "cartpole"
    assert (found["gpu"] or {}).get("name") == ("NVIDIA H200" if gpu else None)
    picture = matplotlib.image.imread(tmp_path / "report.png")
    assert picture.shape[0] > 1000
    assert picture[..., :3].std() > 0.05
    page = (tmp_path / "report.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    assert "&lt;first&gt;" in page
    assert "<first>" not in page
    assert "bound by physics" in page
    assert ("SM active" in page or "sm_active_fraction" in page) == gpu


@pytest.mark.parametrize(("samples", "rows"), [(0, 0), (1, 1), (0, 3), (3, 0)])
def test_a_report_of_little_is_still_one(tmp_path, samples, rows):
    made = report(recording(samples=samples, rows=rows))
    write_report(made, tmp_path)
    found = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert (found["verdict"]["bound_by"] is None) == (rows == 0)
    assert (found["cpu"] is None) == (samples == 0)
    assert summary(made, 80)


def test_what_is_printed_names_stage_pool_end_and_problems():
    made = recording()
    made.end, made.stall = "stalled", Stall(7.25, "its process is stopped by a signal")
    made.note("something could not be read")
    made.note("something could not be read")
    text = summary(report(made), 100)
    for words in ("physics pool (2)", "exposed ms", "verdict    bound by physics", "faster",
                  "the run stalls: no progress for 7.2 s; its process is stopped", "lighter",
                  "switches   2,000/s voluntary, 20/s forced"):  # fmt: skip
        assert words in text
    assert text.count("something could not be read") == 1
    assert max(len(line) for line in text.splitlines()) < 120


def test_the_live_page_shows_the_moment_and_fits_its_width():
    made = recording(gpu=True)
    lines = moment(made, made.samples.items[-1], Path("runs/cartpole/x"), report(made).verdict, 90)
    text = "\n".join(lines)
    assert "GPU        NVIDIA H200" in text
    assert "power 182 of 700 W" in text
    assert "host to device 262 MB/s" in text
    assert "busy 93%, SM active 21%" in text
    assert all(len(line) <= 110 for line in lines)


def test_the_csv_has_a_line_a_sample_and_a_name_for_each_column(tmp_path):
    path = tmp_path / "samples.csv"
    file = CsvFile(path, 2)
    file.write(sample(1.0, gpu=False))
    file.write(Sample(1002.0, 2.0, None, None, None, None, None))
    lines = list(csv.DictReader(io.StringIO(path.read_text())))  # readable before it is closed
    file.close()
    assert len(lines) == 2
    assert float(lines[0]["exposed_ms/physics"]) == 60.0
    assert float(lines[0]["exposed_ms/other"]) == 3.0
    assert float(lines[0]["cores/physics pool"]) == 1.0
    assert lines[0]["core_busy/1"] == "0.9"
    assert lines[0]["gpu/power_w"] == ""
    assert lines[1]["iteration"] == ""


def test_thinned_lists_stay_short_and_even():
    thinned: Thinned[int] = Thinned(8)
    for i in range(1000):
        thinned.append(i)
    steps = {b - a for a, b in zip(thinned.items, thinned.items[1:], strict=False)}
    assert 4 <= len(thinned.items) < 8
    assert len(steps) == 1
    assert thinned.items[0] == 0


def test_the_warm_up_is_left_out_once_there_is_enough_beside():
    sums = StageSums()
    slow = replace(row(1), exposed_ms={"physics": 9000.0}, iteration_ms=9000.0)
    for made in (slow, row(2), row(3)):
        sums.add(made)
    assert sums.totals.iterations == 3
    assert sums.totals.exposed_ms["physics"] == pytest.approx(9120.0)
    sums.add(row(4))
    assert sums.totals.iterations == 3
    assert sums.totals.exposed_ms["physics"] == pytest.approx(180.0)
    assert sums.env_steps_per_s == pytest.approx(5120.0)


def test_tables_stand_beside_each_other():
    lines = side_by_side([(("a", "n"), [("xx", "1"), ("y", "22")]), (("b",), [("z",)])])
    assert lines == ["a    n   b", "xx   1   z", "y   22"]
    assert wrap(["word " * 30], 60)[1].startswith(" " * 11)
