"""Run directories: never overwritten, described, and found by name, number or path."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from unilab.config import RunConfig, load_resolved
from unilab.errors import ConfigError
from unilab.runs import (
    best_path,
    checkpoint_path,
    create_run,
    find_checkpoint,
    list_checkpoints,
    list_runs,
    resolve_run,
)


def config_for(log_dir: Path, task: str = "balance") -> RunConfig:
    return RunConfig.model_validate({"task": task, "log": {"dir": str(log_dir)}})


def make_run(log_dir: Path, name: str, task: str = "balance") -> Path:
    run = log_dir / task / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("task: balance\n")
    return run


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_run_holds_its_config_and_what_it_ran_with(tmp_path):
    config = config_for(tmp_path / "runs")
    run = create_run(config, name="wide", command=["unilab", "train", "balance"])
    assert run.parent == tmp_path / "runs" / "balance"
    assert run.name.endswith("_wide")
    assert load_resolved(run / "config.yaml").config == config
    described = json.loads((run / "run.json").read_text())
    assert described["command"] == ["unilab", "train", "balance"]
    assert set(described["versions"]) >= {"python", "torch", "mujoco", "numba", "numpy"}
    assert described["versions"]["numpy"]
    assert described["platform"]
    assert (run / "checkpoints").is_dir()


def test_runs_of_one_second_and_one_name_never_collide(tmp_path):
    runs = [create_run(config_for(tmp_path), name="same") for _ in range(4)]
    assert len(set(runs)) == 4
    assert list_runs(tmp_path) == runs
    assert resolve_run("latest", tmp_path) == runs[-1]


def test_a_task_file_gives_its_stem_to_the_folder(tmp_path):
    run = create_run(config_for(tmp_path, str(tmp_path / "hop.py")))
    assert run.parent == tmp_path / "hop"
    assert resolve_run("latest", tmp_path, str(tmp_path / "hop.py")) == run


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"log\.dir=.*file.*valid: a folder"):
        create_run(config_for(tmp_path / "file"))


def test_a_name_that_is_not_a_name_is_an_error(tmp_path):
    for name in ("a/b", "", "a b"):
        with pytest.raises(ConfigError, match="--name"):
            create_run(config_for(tmp_path), name=name)
    assert not (tmp_path / "balance").exists()


def test_revision_and_uncommitted_changes_are_kept(tmp_path, monkeypatch):
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "a.txt").write_text("one\n")
    git(repo, "add", "a.txt")
    git(repo, "commit", "-qm", "first")
    monkeypatch.chdir(repo)
    clean = json.loads((create_run(config_for(tmp_path / "runs")) / "run.json").read_text())["git"]
    assert clean == {"revision": git(repo, "rev-parse", "HEAD"), "status": [], "diff": None}

    (repo / "a.txt").write_text("two\n")
    run = create_run(config_for(tmp_path / "runs"))
    changed = json.loads((run / "run.json").read_text())["git"]
    assert changed["status"] == [" M a.txt"]
    assert "-one\n+two\n" in (run / changed["diff"]).read_text()


def test_outside_a_repository_there_is_no_revision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    run = create_run(config_for(tmp_path / "runs"))
    assert json.loads((run / "run.json").read_text())["git"] is None
    assert not (run / "git.diff").exists()


@pytest.fixture
def three_runs(tmp_path):
    """Runs of two tasks, oldest first; made in another order."""
    new = make_run(tmp_path, "2026-03-01_00-00-00_wide")
    old = make_run(tmp_path, "2026-01-01_00-00-00")
    middle = make_run(tmp_path, "2026-02-01_00-00-00_slow", task="hop")
    return old, middle, new


def test_runs_are_selected_by_age_as_number_or_text(tmp_path, three_runs):
    old, middle, new = three_runs
    for selector in ("latest", "-1", -1):
        assert resolve_run(selector, tmp_path) == new
    assert resolve_run("-2", tmp_path) == middle
    assert resolve_run(-3, str(tmp_path)) == old
    assert resolve_run("latest", tmp_path, task="hop") == middle


def test_runs_are_selected_by_name_and_path(tmp_path, three_runs, monkeypatch):
    _, middle, new = three_runs
    assert resolve_run("2026-02-01_00-00-00_slow", tmp_path) == middle
    assert resolve_run("wide", tmp_path) == new
    assert resolve_run("hop/2026-02-01_00-00-00_slow", tmp_path) == middle
    assert resolve_run(str(middle), tmp_path / "elsewhere") == middle
    monkeypatch.chdir(tmp_path)
    assert resolve_run("hop/2026-02-01_00-00-00_slow", "elsewhere").resolve() == middle


def test_a_run_that_is_not_there_lists_those_that_are(tmp_path, three_runs):
    for selector in ("none", "-4", "0", 3):
        with pytest.raises(ConfigError) as caught:
            resolve_run(selector, tmp_path)
        for run in three_runs:
            assert f"{run.parent.name}/{run.name}" in str(caught.value)
    with pytest.raises(ConfigError, match="there are no runs of task balance"):
        resolve_run("latest", tmp_path / "elsewhere", "balance")


def test_a_name_of_two_runs_is_not_guessed(tmp_path, three_runs):
    make_run(tmp_path, "2026-04-01_00-00-00_wide")
    with pytest.raises(ConfigError, match="several"):
        resolve_run("wide", tmp_path)


def test_checkpoints_are_found(tmp_path):
    run = create_run(config_for(tmp_path))
    with pytest.raises(ConfigError, match="none yet"):
        find_checkpoint(run)
    files = [checkpoint_path(run, i) for i in (50, 1_000_000, 100)] + [best_path(run)]
    assert files[0] == run / "checkpoints" / "iter_000050.pt"
    for file in [*files, run / "checkpoints" / "iter_000150.pt.partial"]:
        file.write_bytes(b"")
    assert [iteration for iteration, _ in list_checkpoints(run)] == [50, 100, 1_000_000]
    assert find_checkpoint(run) == files[1]
    assert find_checkpoint(run, "best") == files[3]
    assert find_checkpoint(run, "50") == find_checkpoint(run, 50) == files[0]
    assert find_checkpoint(run, files[2]) == find_checkpoint(run, "iter_000100.pt") == files[2]
    for which in ("75", "worst", ""):
        with pytest.raises(ConfigError, match="valid: latest, 50, 100, 1000000, best"):
            find_checkpoint(run, which)
