"""Who may import whom. The rooms of the package depend on each other in one direction only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Room -> what of our own it may import, besides itself.
INTERNAL = {
    "unilab_kernels": (),
    "unilab.errors": (),
    "unilab.config": ("unilab.errors",),
    "unilab.physics": ("unilab.config", "unilab.errors"),
    "unilab.tasks": ("unilab_kernels", "unilab.config", "unilab.errors", "unilab.physics.model"),
    "unilab.buffers": ("unilab.config", "unilab.errors"),
    "unilab.record": ("unilab.errors",),
    "unilab.learners": ("unilab.config", "unilab.errors", "unilab.buffers"),
    "unilab.runtime": (
        "unilab_kernels",
        "unilab.config",
        "unilab.errors",
        "unilab.physics.base",
        "unilab.tasks.base",
    ),
    "unilab.runners": (
        "unilab.config",
        "unilab.errors",
        "unilab.runs",
        "unilab.record",
        "unilab.distributed",
        "unilab.runtime",
        "unilab.learners",
        "unilab.buffers",
        # A runner puts the parts of a run together, and shows its result.
        "unilab.physics",
        "unilab.tasks",
        "unilab_kernels",
        "unilab.plots",
        "unilab.video",
        "unilab.export",
    ),
    "unilab.runs": ("unilab.config", "unilab.errors"),
    "unilab.monitor": (
        "unilab.config",
        "unilab.errors",
        "unilab.record",
        "unilab.runs",
        "unilab.plots",
        "unilab.runtime.thread_names",
        "unilab.tune.machine",
    ),
    "unilab.tune": (
        "unilab.config",
        "unilab.errors",
        "unilab.runtime",
        # Its worker runs the real task, as a runner does.
        "unilab.runners",
        "unilab.buffers",
        "unilab.tasks",
    ),
    "unilab.bench": (
        "unilab.config",
        "unilab.errors",
        "unilab.gl",
        "unilab.tune.machine",
        # It runs every part of a run by itself, and the whole as a runner does.
        "unilab_kernels",
        "unilab.physics",
        "unilab.tasks",
        "unilab.runtime",
        "unilab.buffers",
        "unilab.learners",
        "unilab.runners",
    ),
    "unilab.selfcheck": (
        "unilab.config",
        "unilab.errors",
        "unilab.bench.machine",
        "unilab.bench.results",
        # It runs every part by itself, and the collector as a runner does.
        "unilab.physics",
        "unilab.tasks",
        "unilab.runtime",
        "unilab.buffers",
        "unilab.learners",
        "unilab.runners",
    ),
    "unilab.video": ("unilab.config", "unilab.errors", "unilab.gl"),
    "unilab.gl": (),
}
# Room -> libraries it must do without, wherever in the file the import stands.
WITHOUT = {
    "unilab.errors": {"torch", "mujoco", "numba"},
    "unilab.config": {"torch", "mujoco", "numba"},
    "unilab.runs": {"torch", "mujoco", "numba"},
    "unilab.monitor": {"torch", "mujoco", "numba"},
    "unilab.cli": {"torch", "mujoco", "numba"},
    "unilab.buffers": {"mujoco", "numba"},
    "unilab.learners": {"mujoco", "numba"},
}
WARP = {"warp", "mujoco_warp"}
WARP_HOME = "unilab.physics.mujoco_warp"


class Import(NamedTuple):
    """One import statement: what it names, where it stands, and whether it runs on import."""

    target: str
    line: int
    at_top: bool


def modules() -> dict[str, Path]:
    """Return every module of ours by its dotted name."""
    found = {}
    for base, package in ((ROOT, "unilab"), (ROOT / "kernels", "unilab_kernels")):
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[Import]:
    """Yield the imports of a module, wherever they stand."""
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        at_top = id(node) not in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_top)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(parent if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in MODULES else base, node.lineno, at_top)


def is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def room_of(name: str) -> str | None:
    return next((room for room in {**INTERNAL, **WITHOUT} if is_in(name, room)), None)


def test_the_walk_sees_the_package():
    assert {"unilab.cli", "unilab.config.load", "unilab_kernels"} <= set(MODULES)
    seen = {item.target: item.at_top for item in imports("unilab.cli.base")}
    assert seen["unilab.errors"] is True
    assert seen["unilab.runs"] is False


def test_every_folder_of_the_package_has_a_rule():
    folders = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    free = {name for name in folders if room_of(name) is None}
    assert free == {"unilab"}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_its_room_may(name):
    room = room_of(name)
    allowed, without = INTERNAL.get(room), WITHOUT.get(room, set())
    wrong = []
    for target, line, _ in imports(name):
        ours = target.partition(".")[0] in ("unilab", "unilab_kernels")
        if ours and allowed is not None and not any(is_in(target, a) for a in (room, *allowed)):
            wrong.append(f"line {line}: {target}")
        if target.partition(".")[0] in without:
            wrong.append(f"line {line}: {target}")
    assert wrong == []


@pytest.mark.parametrize("name", [n for n in MODULES if is_in(n, "unilab_kernels")])
def test_kernels_need_only_numba_and_numpy(name):
    allowed = {"unilab_kernels", "numba", "numpy", *sys.stdlib_module_names}
    assert {i.target.partition(".")[0] for i in imports(name)} <= allowed


@pytest.mark.parametrize("name", MODULES)
def test_warp_stays_behind_its_backend(name):
    for target, line, at_top in imports(name):
        if not is_in(name, WARP_HOME):
            assert target.partition(".")[0] not in WARP, f"line {line}"
        if is_in(target, WARP_HOME) and not is_in(name, WARP_HOME):
            assert not at_top, f"line {line}: import it inside the function that needs it"


def test_no_module_but_the_warp_backend_loads_warp():
    names = [name for name in MODULES if not is_in(name, WARP_HOME)]
    code = "import importlib, sys\n"
    code += f"for name in {names!r}: importlib.import_module(name)\n"
    code += f"assert 'unilab.cli' in sys.modules and not {WARP!r} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
