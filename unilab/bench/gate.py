"""`unilab bench --compare BASE`: this code beside an older commit, on one machine, in turns."""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab.bench.machine import ROOT, git, header, machine_id
from unilab.bench.results import FORMAT, Spread, result_stem, results_folder, write_json
from unilab.bench.show import Show, say
from unilab.config import LoadedConfig, locate_task, task_label
from unilab.errors import ConfigError, UnilabError

CHILD = Path(__file__).with_name("gate_child.py")
DEFAULT_ENVS = 2048
PAIRS, MORE_PAIRS = 3, 3  # of processes; the second lot only where the first shows a loss
SECONDS, QUICK_SECONDS = 6.0, 2.0  # that one process measures
HIGHER_IS_BETTER = ("collector (env-steps/s)",)


@dataclass(frozen=True)
class Side:
    """One of the two versions.

    Attributes:
      name: how it is called in the table.
      tree: folder with `unilab` and `kernels`.
      cache: folder of its compiled kernels.
    """

    name: str
    tree: Path
    cache: Path

    def run(self, job: Mapping[str, Any]) -> dict[str, float]:
        """Measure this version in a fresh process.

        Raises:
          ConfigError: it refuses the task or a value.
          UnilabError: it failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "figures.json"
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(self.tree), str(self.tree / "kernels"))),
                "UNILAB_CACHE_DIR": str(self.cache),
            }
            # -P: the script's own folder is not on the path, so `unilab` is that of the tree.
            done = subprocess.run(
                [sys.executable, "-P", str(CHILD)],
                input=json.dumps({**job, "result": str(result)}),
                env=environment,
                cwd=folder,
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode != 0 or not result.exists():
                raise UnilabError(f"{self.name} failed with code {done.returncode}:\n{done.stderr}")
            found = json.loads(result.read_text())
        if "error" in found:
            raise ConfigError(f"--compare: {self.name} cannot run this: {found['error']}")
        if not Path(found["source"]).is_relative_to(self.tree.resolve()):
            raise UnilabError(f"{self.name}: {found['source']} was imported instead of {self.tree}")
        figures: dict[str, float] = found["figures"]
        return figures


@dataclass(frozen=True)
class Figure:
    """One figure of both versions.

    Attributes:
      name: with its unit.
      base, new: over the processes.
      ratio: new / base, the median over the pairs.
      loss: how much worse the new one is, as a share of the base; the median over the pairs.
    """

    name: str
    base: Spread
    new: Spread
    ratio: float
    loss: float


def compare_with(
    loaded: LoadedConfig,
    overrides: Sequence[str],
    base: str,
    tolerance: float,
    *,
    num_envs: int | None = None,
    quick: bool = False,
    output: Path | None = None,
) -> int:
    """Measure this code and a commit in turns, print the ratios, and write them.

    Args:
      loaded: config of the task.
      overrides: what it was loaded with.
      base: commit, tag or branch.
      tolerance: share of a figure that may be lost.
      num_envs: N; None takes 2,048.
      quick: shorter processes.
      output: folder of the file.

    Returns:
      0, or 1 where a figure got worse by more than the tolerance.

    Raises:
      ConfigError: not a checkout, no such commit, or the base does not know the task.
    """
    task = loaded.config.task
    commit = find_commit(base, task)
    folder = results_folder(output)
    machine = {**header(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    job: dict[str, Any] = {
        "task": task,
        "overrides": list(overrides),
        "num_envs": num_envs or DEFAULT_ENVS,
        "seconds": QUICK_SECONDS if quick else SECONDS,
    }
    with tempfile.TemporaryDirectory(prefix="unilab-gate-") as scratch, Show() as show:
        sides = (
            Side(f"base {commit}", unpack(commit, Path(scratch) / "base"),
                 Path(scratch) / "cache_base"),
            Side("this code", ROOT, Path(scratch) / "cache_new"),
        )  # fmt: skip
        pairs = run_pairs(sides, job, tolerance, show)
    figures = judge(pairs)
    say(report(figures, task_label(task), job["num_envs"], sides, tolerance, len(pairs)))
    passed = all(figure.loss <= tolerance for figure in figures)
    path = folder / f"{result_stem('gate', task, machine_id())}_vs_{commit}.json"
    content = {"base": commit, "tolerance": tolerance, "passed": passed, "pairs": pairs}
    sizes = {"task": task_label(task), "num_envs": job["num_envs"]}
    write_json(path, {"format": FORMAT, "machine": machine, **sizes, **content})
    say(f"written: {path}")
    return 0 if passed else 1


def find_commit(base: str, task: str, root: Path = ROOT) -> str:
    """Return the short hash of a commit that has the task.

    Raises:
      ConfigError: not a checkout, no such commit, or the task is not in it.
    """
    if git(root, "rev-parse", "--git-dir") is None or not (root / ".git").exists():
        raise ConfigError(
            f"--compare {base}: {root} is no git checkout, so there is no commit to compare with; "
            "clone the repository and install it from there (pip install -e .)"
        )
    commit = git(root, "rev-parse", "--short", "--verify", "--quiet", f"{base}^{{commit}}")
    if not commit:
        recent = ", ".join((git(root, "log", "--format=%h", "-5") or "").split()) or "none"
        raise ConfigError(
            f"--compare {base}: there is no such commit, tag or branch here; the latest commits: "
            f"{recent}"
        )
    if task.endswith(".py"):
        return commit
    path = f"configs/{locate_task(task).config_path.name}"
    if git(root, "cat-file", "-e", f"{commit}:{path}") is None:
        raise ConfigError(
            f"--compare {base}: commit {commit} has no task '{task}'; compare with a commit that "
            f"has it (git log --oneline -- {path})"
        )
    return commit


def unpack(commit: str, folder: Path, root: Path = ROOT) -> Path:
    """Write the files of a commit to a folder. Nothing in the checkout changes."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=root, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def run_pairs(
    sides: Sequence[Side], job: Mapping[str, Any], tolerance: float, show: Show
) -> list[list[dict[str, float]]]:
    """Run fresh processes of both in turns; more of them where there seems to be a loss."""
    for side in sides:
        show(f"{side.name}: compiling its kernels")
        side.run({**job, "seconds": 0.0})
    pairs: list[list[dict[str, float]]] = []
    while len(pairs) < PAIRS + MORE_PAIRS:
        order = (0, 1) if len(pairs) % 2 == 0 else (1, 0)  # a drift must not favour one
        pair: list[dict[str, float]] = [{}, {}]
        for index in order:
            show(f"pair {len(pairs) + 1}: {sides[index].name}")
            pair[index] = sides[index].run(job)
        pairs.append(pair)
        if len(pairs) >= PAIRS and all(figure.loss <= tolerance for figure in judge(pairs)):
            break
    return pairs


def judge(pairs: Sequence[Sequence[Mapping[str, float]]]) -> list[Figure]:
    """Return each figure of both versions, and what was lost."""
    figures = []
    for name in pairs[0][0]:
        ratio = statistics.median(new[name] / base[name] for base, new in pairs)
        loss = 1.0 - ratio if name in HIGHER_IS_BETTER else ratio - 1.0
        figures.append(
            Figure(
                name,
                Spread.of(base[name] for base, _ in pairs),
                Spread.of(new[name] for _, new in pairs),
                ratio,
                loss,
            )
        )
    return figures


def report(
    figures: Sequence[Figure],
    task: str,
    num_envs: int,
    sides: Sequence[Side],
    tolerance: float,
    pairs: int,
) -> str:
    """Return the table of both versions."""
    lines = [
        f"{task}, {num_envs:,} envs: {sides[1].name} against {sides[0].name}",
        f"medians of {pairs} fresh processes each, in turns; ratio: median of the pairs",
        f"{'':26s}{'base':>12s}{'this code':>12s}{'ratio':>8s}",
    ]
    for figure in figures:
        base, new = figure.base.median, figure.new.median
        mark = ""
        if figure.loss > tolerance:
            mark = f"  {100 * figure.loss:.0f} % worse"
        places = 0 if base >= 1000 else 3
        lines.append(
            f"{figure.name:26s}{base:12,.{places}f}{new:12,.{places}f}{figure.ratio:8.3f}{mark}"
        )
    lost = [figure.name for figure in figures if figure.loss > tolerance]
    verdict = (
        f"FAILED: more than {100 * tolerance:g} % lost in {', '.join(lost)}"
        if lost
        else f"passed: nothing lost more than {100 * tolerance:g} %"
    )
    return "\n".join([*lines, verdict])
