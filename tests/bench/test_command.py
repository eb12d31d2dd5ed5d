"""One tiny benchmark from start to end: real processes, real figures, all files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unilab.bench.command import DEFAULT_ENVS, Effort, bench, choose_envs
from unilab.bench.report import rebuild
from unilab.config import load_config
from unilab.errors import ConfigError

TINY = Effort(processes=1, recorded_steps=2, host_s=0.0, collect_s=0.0, cache_bytes=2**20)
KEYS = ["numpy", "numpy_whole", "numpy_shards", "numba", "prange", "shards", "nested",
        "host_buffer", "device_buffer", "fp32", "bf16", "overlap_off", "overlap_on",
        "combined"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a benchmark of cartpole with 128 envs."""
    folder = tmp_path_factory.mktemp("results")
    loaded = load_config("cartpole")
    command = ["unilab", "bench", "cartpole", "--output", str(folder)]
    assert bench(loaded, [], num_envs=128, effort=TINY, output=folder, command=command) == 0
    return folder


def test_the_result_has_every_row_with_real_figures(folder):
    (path,) = folder.glob("bench_cartpole_*.json")
    content = json.loads(path.read_text())
    assert [row["key"] for row in content["rows"]] == KEYS
    assert str(folder) not in path.read_text()
    assert content["num_envs"] == 128
    assert content["step_bytes"] > 128 * 100
    for row in content["rows"]:
        if row["absent"]:
            assert row["absent"].startswith("not run: ")
            assert row["ms"] is None
            continue
        assert row["ms"]["median"] > 0
        assert row["ceiling_env_steps_per_s"]["median"] > row["env_steps_per_s"]["median"] > 0
        assert (row["bandwidth_share"] is None) == (row["timed"] in ("policy", "control step"))
    (process,) = content["processes"]
    assert process["agreement"]["stray_envs"] == 0
    stages = process["passes"]["shards"]["stages_ms"]
    parts = sum(value for name, value in stages.items() if name != "step")
    assert parts == pytest.approx(stages["step"], rel=0.2)


def test_markdown_and_picture_lie_beside_it(folder):
    (markdown,) = folder.glob("bench_cartpole_*.md")
    assert "| all combined" in markdown.read_text()
    (picture,) = folder.glob("bench_cartpole_*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_report_shows_each_machine_with_its_history(folder, tmp_path):
    (path,) = folder.glob("bench_cartpole_*.json")
    shutil.copy(path, tmp_path)
    older = json.loads(path.read_text())
    older["machine"] |= {"commit": "0000000", "time": "2020-01-01 00:00:00"}
    (tmp_path / "bench_cartpole_older.json").write_text(json.dumps(older))
    other = json.loads(path.read_text())
    other["machine"] |= {"id": "another-machine"}
    (tmp_path / "bench_cartpole_another.json").write_text(json.dumps(other))
    reports = rebuild(tmp_path)
    assert len(reports) == 2
    assert tmp_path / "report_another-machine.md" in reports
    text = next(r for r in reports if "another" not in r.name).read_text()
    assert text.index("| 0000000") < text.index(
        f"| {json.loads(path.read_text())['machine']['commit']}"
    )
    for picture in ("history_cartpole_128_", "bench_cartpole_"):
        (found, *_) = tmp_path.glob(f"{picture}*.png")
        assert found.read_bytes().startswith(b"\x89PNG")


def test_an_empty_folder_has_no_report(tmp_path):
    with pytest.raises(ConfigError, match="there is no result of `unilab bench` here"):
        rebuild(tmp_path)


def test_the_batch_is_the_option_then_the_command_line_then_the_default():
    plain = load_config("cartpole")
    given = load_config("cartpole", ["physics.num_envs=96"])
    assert choose_envs(plain, None) == DEFAULT_ENVS
    assert choose_envs(given, None) == 96
    assert choose_envs(given, 64) == 64


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the task is missing"),
        (["nosuch"], "unknown task 'nosuch'"),
        (["cartpole", "physics.nosuch=1"], "physics.nosuch"),
        (["cartpole", "--num-envs", "0"], "--num-envs"),
        (["cartpole", "--compare", "main", "--tolerance", "7"], "--tolerance"),
        (["cartpole", "--compare", "no-such-commit"], "no-such-commit"),
        (["cartpole", "--output", "/proc/nowhere"], "cannot write there"),
    ],
)
def test_mistakes_are_one_clear_message(words, text, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "unilab.cli", "bench", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_value_that_a_process_refuses_is_an_error_too(tmp_path):
    loaded = load_config("cartpole")
    with pytest.raises(ConfigError, match="GiB of memory"):
        bench(loaded, [], num_envs=2**31 - 64, effort=TINY, output=tmp_path)
