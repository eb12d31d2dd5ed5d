"""The wheel holds all that the command needs: built, installed elsewhere, and run from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        **options,  # type: ignore[call-overload]
    )


def build_wheel(folder: Path) -> Path:
    """Build with the tools of this environment, or where they are missing with pip's own."""
    pip = (sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--wheel-dir", folder)
    done = run(*pip, "--no-build-isolation")
    if done.returncode != 0:
        done = run(*pip)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_lists_and_explains_tasks_away_from_the_checkout(tmp_path: Path) -> None:
    wheel, target, desk = build_wheel(tmp_path / "wheel"), tmp_path / "target", tmp_path / "desk"
    done = run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel)
    assert done.returncode == 0, done.stderr
    desk.mkdir()
    # Dependencies come from this environment; the path of the target is looked at first.
    options = {"cwd": desk, "env": {**os.environ, "PYTHONPATH": str(target)}}

    code = "import unilab, unilab_kernels as k; print(unilab.__file__, k.__file__, sep='\\n')"
    files = run(sys.executable, "-c", code, **options).stdout.splitlines()
    assert len(files) == 2
    for file in files:
        assert Path(file).is_relative_to(target), file

    listed = run(target / "bin" / "unilab", "list", **options)
    assert listed.returncode == 0, listed.stderr
    wanted = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert [line.split()[0] for line in listed.stdout.splitlines()] == wanted

    for task in wanted:
        explained = run(target / "bin" / "unilab", "explain", task, **options)
        assert explained.returncode == 0, explained.stderr
        assert f"robot     {target}" in explained.stdout
        assert "observations.actor" in explained.stdout
