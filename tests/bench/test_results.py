"""Rows, tables and files, from figures that can be checked by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unilab.bench.choices import combine, make_choices
from unilab.bench.results import (
    FORMAT,
    Row,
    Spread,
    make_rows,
    read_results,
    results_folder,
    write_json,
)
from unilab.bench.table import table_markdown, table_text
from unilab.errors import ConfigError


def choice(key: str, **fields: Any) -> dict[str, Any]:
    base = {"key": key, "title": key, "timed": "host step", "against": "numpy", "absent": ""}
    return {**base, **fields}


def process(scale: float) -> dict[str, Any]:
    """One process in which everything took `scale` times as long."""
    stages = {"policy": 2.0 * scale, "buffer": 0.5 * scale, "step": 50.0 * scale}
    passed = {
        "env_steps_per_s": 1000.0 / scale,
        "ceiling_env_steps_per_s": 1100.0 / scale,
        "host_ms": 9.0,
        "stages_ms": stages,
    }
    bandwidth = {
        "one_thread_bytes_per_s": 1e9,
        "all_threads_bytes_per_s": 2e9,
        "threads": 2,
        "array_bytes": 4 * 2**20,
        "cache_bytes": 2**20,
    }
    keys = ("numpy", "numba", "host_buffer", "fp32", "combined")
    return {
        "choices": [
            choice("numpy"),
            choice("numba"),
            choice("host_buffer", timed="buffer", against="host_buffer"),
            choice("device_buffer", timed="buffer", absent="not run: no CUDA device"),
            choice("fp32", timed="policy", against="fp32"),
            choice("combined", title="all combined (host step): 2 shards, fp32, host buffer"),
        ],
        "host_ms": {"numpy": 10.0 * scale, "numba": 2.0},
        "passes": dict.fromkeys(keys, passed),
        "bandwidth": bandwidth,
        "done_per_step": 3.0,
        "scaling": {"host_gain": 1.8, "kernel_gain": 1.9, "loop_gain": 2.0, "kernel_ms": 1.5},
        "parts_ms": {"gather": 0.3, "random numbers": 0.2},
        "agreement": {
            "steps": 2, "arrays": ["obs", "reward"], "largest_difference": 1e-6, "stray_envs": 0,
            "done": 5, "pushed": 2,
        },
    }  # fmt: skip


def content(**changes: Any) -> dict[str, Any]:
    processes = [process(1.0), process(2.0), process(3.0)]
    rows = make_rows(processes, step_bytes=4e6, row_bytes=1e6)
    machine = {
        "id": "machine", "cpu": "A processor with quite a long name", "cpus": 2, "gpu": None,
        "versions": {"numpy": "2.4"}, "commit": "abc1234", "changed_files": 0,
        "date": "2026-01-31", "time": "2026-01-31 10:00:00",
    }  # fmt: skip
    return {
        "format": FORMAT, "machine": machine, "command": "unilab bench g1_walk", "task": "g1_walk",
        "num_envs": 8192, "step_bytes": 4e6, "kernel_bytes": 1e6, "buffer_bytes": 1e6,
        "processes": processes, "rows": [row.plain() for row in rows], **changes,
    }  # fmt: skip


def test_rows_hold_medians_ratios_and_bandwidth_shares():
    rows = {row.key: row for row in make_rows(content()["processes"], 4e6, 1e6)}
    numba = rows["numba"]
    assert numba.ms == Spread(2.0, 2.0, 2.0)
    assert numba.speedup == Spread(10.0, 5.0, 15.0)  # pairs of the same process
    assert numba.bandwidth_share == pytest.approx(4e6 / 2e-3 / 2e9)  # 1: all of it
    assert numba.env_steps_per_s == Spread(500.0, 1000.0 / 3.0, 1000.0)
    assert rows["host_buffer"].ms == Spread(1.0, 0.5, 1.5)
    assert rows["host_buffer"].moved_bytes == 1e6
    assert rows["fp32"].ms == Spread(4.0, 2.0, 6.0)
    assert rows["fp32"].moved_bytes is None
    assert rows["combined"].ms == Spread(9.0, 9.0, 9.0)  # from the collector: not replayed
    assert rows["device_buffer"].absent == "not run: no CUDA device"
    assert rows["device_buffer"].ms is None


def test_rows_come_back_from_json():
    for row in make_rows(content()["processes"], 4e6, 1e6):
        assert Row.read(json.loads(json.dumps(row.plain()))) == row


def test_the_table_fits_the_terminal_and_says_what_was_not_run():
    text = table_text(content())
    assert max(map(len, text.splitlines())) <= 100
    lines = {line.split("  ")[1]: line for line in text.splitlines() if line.startswith("  ")}
    assert "not run: no CUDA device" in lines["device_buffer"]
    assert "2.00" in lines["numba"]
    assert "10x" in lines["numba"]
    assert "100%" in lines["numba"]
    joined = " ".join(text.split())
    assert "One to two shards gains 1.8 (step kernel alone 1.9)" in joined
    assert "a pure arithmetic loop of equal length gains 2.0 in the same run" in joined
    assert "its bytes alone would take 1 ms at the full bandwidth of one thread (67 %)" in joined
    assert "Not explained by them: 1 ms" in joined


def test_markdown_has_a_line_a_row():
    lines = table_markdown(content()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 6
    assert "| numba | host step | 2.00 |" in rows[3]
    assert "abc1234" in lines[0]


def test_results_are_read_oldest_first_and_others_left_alone(tmp_path):
    for commit, when in (("bbb", "2026-02-01"), ("aaa", "2026-01-01")):
        made = content()
        made["machine"] = {**made["machine"], "commit": commit, "time": when}
        write_json(tmp_path / f"bench_g1_walk_machine_{commit}.json", made)
    write_json(tmp_path / "bench_old.json", {"format": 0})
    write_json(tmp_path / "kernel_go1_walk.json", {"machine": {}})
    assert [c["machine"]["commit"] for c in read_results(tmp_path)] == ["aaa", "bbb"]


def test_a_broken_result_is_named(tmp_path):
    (tmp_path / "bench_x.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bench_x\.json: cannot be read as a result"):
        read_results(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output .*cannot write there"):
        results_folder(tmp_path / "file")


def test_rows_that_need_what_is_missing_say_so():
    alone = {c.key: c.absent for c in make_choices(1, 64, cuda=False, numpy="not run: no twin")}
    assert alone["numpy"] == "not run: no twin"
    assert alone["shards"] == "not run: 1 CPU"
    assert alone["device_buffer"] == "not run: no CUDA device"
    assert alone["overlap_off"] == "not run: one block of envs"
    assert alone["numba"] == ""
    every = make_choices(2, 1024, cuda=True)
    assert [c.key for c in every if c.absent] == []
    assert {c.key for c in every if not c.device_buffer} == {"host_buffer"}


def test_the_last_row_takes_the_quickest_of_each_pair():
    choices = make_choices(2, 1024, cuda=False)
    times = {"numba": 4.0, "prange": 2.5, "shards": 2.0, "nested": 3.0, "fp32": 2.0, "bf16": 1.0,
             "host_buffer": 1.0}  # fmt: skip
    last = combine(choices, times, {"shards": 50.0, "overlap_on": 60.0})
    assert (last.shards, last.bf16, last.overlap) == (2, True, False)
    assert last.title == "all combined (host step): 2 shards, bf16, host buffer"
    last = combine(choices, {**times, "bf16": 3.0}, {"shards": 50.0, "overlap_on": 40.0})
    assert (last.groups, last.bf16, last.overlap) == (2, False, True)
    assert "overlap" in last.title
