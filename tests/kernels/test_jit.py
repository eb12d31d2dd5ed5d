"""Where kernels are kept: cold and warm, shared by processes, and without a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unilab_kernels
from unilab_kernels import jit

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import sys, time
from tests.kernels.support import make_spec, random_arrays
from unilab_kernels.fuse import ARRAYS, assemble
spec = make_spec(name="tiny")
kernel = assemble(spec)
path = kernel.write()
module = kernel.load()
arrays = random_arrays(kernel, spec, 3)
module.apply_action(0, 1, 3, *(arrays[name] for name in ARRAYS))
stats = module.apply_action.stats
print(path, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def run(text: str, **environment: str | None) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split()


def test_processes_that_start_together_on_a_cold_cache_all_work(tmp_path):
    together = [run(STEP, UNILAB_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    paths = {output(process)[0] for process in together}
    assert len(paths) == 1
    assert Path(paths.pop()).parent == tmp_path / "kernels"
    assert not list(tmp_path.rglob("*.tmp"))
    # What they compiled is there for the next one, also after the files were made anew.
    for file in (tmp_path / "kernels").glob("*.py"):
        file.unlink()
    assert output(run(STEP, UNILAB_CACHE_DIR=str(tmp_path)))[1:] == ["1", "0"]


def test_without_a_home_kernels_go_to_the_temporary_folder(tmp_path):
    """A read-only install and no writable home: one step runs, the package is left as it was."""
    package = tmp_path / "site" / "unilab_kernels"
    shutil.copytree(
        Path(unilab_kernels.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    files = sorted(package.rglob("*"))
    package.chmod(0o555)
    text = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n" + STEP
    text += "import unilab_kernels; print(unilab_kernels.__file__)"
    process = run(
        text,
        UNILAB_CACHE_DIR=None,
        XDG_CACHE_HOME=None,
        HOME="/proc/no_such_home",
        TMPDIR=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1",
    )
    path, hits, misses, used = output(process)
    assert Path(used).parent == package
    assert Path(path).is_relative_to(tmp_path / f"unilab-{os.getuid()}")
    assert (hits, misses) == ("0", "1")
    assert sorted(package.rglob("*")) == files


def test_a_named_folder_that_cannot_be_used_costs_a_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("UNILAB_CACHE_DIR", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="UNILAB_CACHE_DIR"):
        folder = jit.cache_dir()
    assert folder == tmp_path / "cache" / "unilab" / "kernels"
    assert folder.is_dir()


def test_a_module_is_written_once_and_loaded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("UNILAB_CACHE_DIR", str(tmp_path))
    path = jit.write_module("unit", "VALUE = 1\n")
    inode = path.stat().st_ino
    assert jit.write_module("unit", "VALUE = 1\n") == path
    assert path.stat().st_ino == inode
    assert jit.write_module("unit", "VALUE = 2\n") != path
    module = jit.load_module(path)
    assert module.VALUE == 1
    assert jit.load_module(path) is module


def test_a_module_that_fails_to_load_is_not_taken_for_a_good_one(tmp_path, monkeypatch):
    monkeypatch.setenv("UNILAB_CACHE_DIR", str(tmp_path))
    path = jit.write_module("broken", "VALUE = 1\nraise RuntimeError('half way')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="half way"):
            jit.load_module(path)


@pytest.mark.parametrize("path", sorted(Path(unilab_kernels.__file__).parent.glob("*.py")))
def test_no_kernel_is_compiled_with_plain_fast_math(path):
    """`fastmath=True` makes isfinite lie."""
    assert "fastmath=True" not in path.read_text().replace(" ", "")
    assert '"fastmath": True' not in path.read_text()
