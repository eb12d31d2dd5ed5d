"""The regression gate: its arithmetic, its errors, and one run on a repository of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unilab.bench.gate import Side, find_commit, judge, report, unpack
from unilab.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits: the second one has the task cartpole."""
    folder = tmp_path / "repository"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "other.yaml").write_text("description: other\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "configs" / "cartpole.yaml").write_text("description: first\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "two")
    return folder


def test_a_commit_a_tag_and_a_branch_are_found(repository):
    git(repository, "tag", "v1")
    head = git(repository, "rev-parse", "--short", "HEAD")
    assert {find_commit(b, "cartpole", repository) for b in (head, "v1", "main", "HEAD")} == {head}


def test_what_cannot_be_compared_with_is_refused(repository, tmp_path):
    with pytest.raises(ConfigError, match=r"nosuch: there is no such commit.*latest commits: "):
        find_commit("nosuch", "cartpole", repository)
    with pytest.raises(ConfigError, match="has no task 'cartpole'; compare with a commit that"):
        find_commit("HEAD~1", "cartpole", repository)
    with pytest.raises(ConfigError, match="is no git checkout"):
        find_commit("HEAD", "cartpole", tmp_path)


def test_an_older_commit_is_unpacked_and_the_checkout_stays_as_it_is(repository, tmp_path):
    (repository / "configs" / "cartpole.yaml").write_text("description: changed\n")
    before = git(repository, "status", "--porcelain"), git(repository, "worktree", "list")
    tree = unpack("HEAD", tmp_path / "old", repository)
    assert (tree / "configs" / "cartpole.yaml").read_text() == "description: first\n"
    assert not (unpack("HEAD~1", tmp_path / "older", repository) / "configs/cartpole.yaml").exists()
    assert before == (git(repository, "status", "--porcelain"), git(repository, "worktree", "list"))


RATE, TIME = "collector (env-steps/s)", "host step (ms)"


def test_losses_are_medians_of_pairs_in_the_right_direction():
    pairs = [
        [{RATE: 100.0, TIME: 2.0}, {RATE: 80.0, TIME: 1.0}],
        [{RATE: 100.0, TIME: 2.0}, {RATE: 95.0, TIME: 1.5}],
        [{RATE: 200.0, TIME: 2.0}, {RATE: 180.0, TIME: 4.0}],
    ]
    rate, time = judge(pairs)
    assert (rate.name, rate.loss, rate.ratio) == (RATE, pytest.approx(0.1), pytest.approx(0.9))
    assert (rate.base.median, rate.new.median) == (100.0, 95.0)
    assert (time.loss, time.ratio) == (pytest.approx(-0.25), pytest.approx(0.75))


def test_the_report_names_what_was_lost():
    sides = [Side("base abc", Path(), Path()), Side("this code", Path(), Path())]
    figures = judge([[{RATE: 100.0, TIME: 2.0}, {RATE: 88.0, TIME: 2.1}]])
    text = report(figures, "g1_walk", 64, sides, 0.1, 1)
    assert "12 % worse" in text
    assert text.endswith("FAILED: more than 10 % lost in collector (env-steps/s)")
    assert report(figures, "g1_walk", 64, sides, 0.2, 1).endswith("nothing lost more than 20 %")


def test_a_version_that_refuses_the_task_is_a_clear_error(tmp_path):
    side = Side("this code", ROOT, tmp_path)
    job = {
        "task": "cartpole",
        "overrides": ["rewards.nosuch.weight=1"],
        "num_envs": 8,
        "seconds": 0,
    }
    with pytest.raises(ConfigError, match=r"--compare: this code cannot run this: .*nosuch"):
        side.run(job)


@pytest.mark.slow
def test_a_slower_version_fails_and_the_same_one_passes(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("unilab", "kernels", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")

    def compare(tolerance: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(folder), str(folder / "kernels")))
        return subprocess.run(
            [sys.executable, "-P", "-m", "unilab.cli", "bench", "cartpole", "--compare", "main",
             "--quick", "--num-envs", "512", "--tolerance", tolerance, "--output", "out"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )  # fmt: skip

    same = compare("0.9")
    assert same.returncode == 0, same.stdout + same.stderr
    pipeline = folder / "unilab" / "runtime" / "pipeline.py"
    text = pipeline.read_text()
    assert "import numpy as np\n" in text
    slow = text.replace("import numpy as np\n", "import time\n\nimport numpy as np\n", 1).replace(
        '        envs = self.groups[group]\n        with self.timers.span("physics", group=group):',
        "        envs = self.groups[group]\n        time.sleep(0.02)\n"
        '        with self.timers.span("physics", group=group):',
        1,
    )
    assert "time.sleep" in slow
    pipeline.write_text(slow)
    worse = compare("0.1")
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert "FAILED" in worse.stdout
    assert "collector (env-steps/s)" in worse.stdout.splitlines()[-2]
    assert len(list((tmp_path / "out").glob("gate_cartpole_*_vs_*.json"))) >= 1
