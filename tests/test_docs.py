"""Every code block of the README and of docs/ is run, with tiny sizes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETS_UP = "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[dev]' && "
TESTS = ".ci/run"
TINY = ["learners.ppo.num_steps=4", "evaluation.episodes=4", "evaluation.episode_length_s=0.2"]
TINY_TRAIN = [*TINY, "physics.num_envs=64", "evaluation.video=false"]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.S)


def commands(page: Path) -> list[str]:
    """Return the shell commands of a page, without comments."""
    lines = "\n".join(blocks(page, "bash")).split("\n")
    return [text for line in lines if (text := line.split("#")[0].strip())]


def tiny(command: str) -> list[str]:
    """Return a unilab command with sizes that take seconds."""
    words = shlex.split(command)
    if words[1] == "train" and "--resume" not in words:
        words += TINY_TRAIN
        if not any(w.startswith("train.iterations") for w in words):
            words.append("train.iterations=2")
    elif words[1] == "train":
        words = [w if not w.startswith("train.iterations") else "train.iterations=4" for w in words]
    elif words[1] == "monitor" and "--run" not in words:
        words += [*TINY_TRAIN, "train.iterations=2"]
    elif words[1] == "bench":
        words += ["--quick", "--num-envs", "128", "--output", "results"]
    elif words[1] == "selfcheck":
        words = [w for w in words if w != "--gpu"]
        words += ["--checks-only", "--task", "go1_walk", "--output", "results"]
    elif words[1] == "tune":
        words += ["--budget", "5"]
    elif words[1] == "eval":
        words += [*TINY, "evaluation.video_seconds=0.2"]
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_shell_blocks_run_in_the_order_they_stand(page: Path, tmp_path: Path) -> None:
    for command in commands(page):
        text = command.removeprefix(SETS_UP)
        if text == TESTS:
            assert (ROOT / text).exists()
            continue
        words = tiny(text)
        assert words[0] == "unilab", f"{page.name}: do not know how to test '{command}'"
        done = subprocess.run(
            [sys.executable, "-m", "unilab.cli", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            env={**os.environ, "UNILAB_CONFIG_DIR": str(tmp_path)},  # where `tune` writes
        )
        no_screen = "--video" in words and "install one with" in done.stderr
        assert done.returncode == 0 or no_screen, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_are_there_and_no_figure_is_left_open(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"@[A-Z_]+@", text)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_term_of_the_readme_fuses_into_a_task(tmp_path: Path) -> None:
    (python,) = blocks(ROOT / "README.md", "python")
    (rewards,) = blocks(ROOT / "README.md", "yaml")
    task = (ROOT / "unilab/tasks/go1_walk.py").read_text()
    future = "from __future__ import annotations\n"
    (tmp_path / "my_task.py").write_text(task.replace(future, future + python, 1))
    config = (ROOT / "configs/go1_walk.yaml").read_text()
    (tmp_path / "my_task.yaml").write_text(config.replace("rewards:\n", rewards, 1))
    done = subprocess.run(
        [sys.executable, "-m", "unilab.cli", "explain", "my_task.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"-1\s+stay_low\s+limit_m=0.4", done.stdout)


def test_the_block_of_the_randomization_page_trains(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs" / "randomization.md", "yaml")
    (tmp_path / "shaky.py").write_text("from unilab.tasks.go1_walk import TASK as TASK\n")
    config = (ROOT / "configs/go1_walk.yaml").read_text()
    (tmp_path / "shaky.yaml").write_text(config + block)
    for words in (
        ["explain", "shaky.py"],
        ["train", "shaky.py", *TINY_TRAIN, "train.iterations=2"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "unilab.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        if words[0] == "explain":
            assert re.search(r"action_delay +reset +substeps=\[0, 2\]", done.stdout)
            assert "8 startup draws x 8 reset draws" in done.stdout
