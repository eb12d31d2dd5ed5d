"""Numbers that stay non-finite stop a run, are written down, and never reach a checkpoint."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.config import RunConfig
from unilab.config.base import to_plain
from unilab.errors import UnilabError
from unilab.learners.off_policy_core import NON_FINITE as NON_FINITE
from unilab.runners.checkpoint import write_file
from unilab.runs import list_checkpoints

MAX_BAD_ITERATIONS = 3  # this many logged iterations in a row with such numbers: stop
KEPT_LOGS = 10  # rows of the log in a dump
SHOWN = 5  # names in the error message, and the largest tensors in the report
HUGE_REWARD = 1e6  # beyond it the advice is about rewards


class NonFiniteWatch:
    """Watches the log of a run for numbers that are not finite.

    One such number is skipped and counted by the learner or the envs, and training goes on. Where
    it happens in MAX_BAD_ITERATIONS logged iterations in a row, `check` writes a dump and raises.

    Args:
      run_dir: where a dump goes.
      config: of the run.
    """

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self._run_dir, self._config = run_dir, config
        self._logs: deque[dict[str, float]] = deque(maxlen=KEPT_LOGS)
        self._count = 0

    @property
    def is_calm(self) -> bool:
        """True unless the last row of the log had such numbers. Reads nothing from the device."""
        return self._count == 0

    def trusts(self, refused: Tensor | float) -> bool:
        """True where the state may be saved: neither log nor what came since had such numbers.

        Args:
          refused: () updates refused since then. Waits for its device.
        """
        return self.is_calm and not refused > 0

    def check(
        self,
        iteration: int,
        log: dict[str, float],
        learner: Callable[[], Mapping[str, Any]],
        data: Mapping[str, Tensor],
    ) -> None:
        """Take in a row of the log.

        Args:
          iteration: that it is of.
          log: the row.
          learner: gives the learner's state.
          data: what it learned from last, by name.

        Raises:
          UnilabError: it has gone on for too long. A dump is in the run directory.
        """
        self._logs.append({"iteration": float(iteration), **log})
        actions, updates = log.get("failure/bad_action", 0.0), log.get(NON_FINITE, 0.0)
        self._count = self._count + 1 if actions or updates else 0
        if self._count >= MAX_BAD_ITERATIONS:
            self._stop(
                f"{self._count} iterations in a row had numbers that are not finite: "
                f"{actions:.0f} actions, {updates:.0f} updates skipped in the last one",
                iteration, learner(), data,
            )  # fmt: skip

    def check_end(
        self,
        iteration: int,
        metrics: Mapping[str, Tensor],
        learner: Callable[[], Mapping[str, Any]],
        data: Mapping[str, Tensor],
    ) -> None:
        """Raise as `check` does where no update was finite in the end: nothing good to save."""
        hopeless = [name for name, value in metrics.items() if not math.isfinite(value)]
        if hopeless and metrics.get(NON_FINITE, 0.0) > 0:
            self._stop("in the end no update was finite", iteration, learner(), data)

    def _stop(
        self,
        what: str,
        iteration: int,
        learner: Mapping[str, Any],
        data: Mapping[str, Tensor],
    ) -> None:
        named = dict(_tensors({"learner": learner, "data": data}))
        report = {
            "what": what,
            "iteration": iteration,
            "metrics": _bad_metrics(self._logs[-1] if self._logs else {}),
            **describe(named),
        }
        advice = self._advice(report)
        path = self._run_dir / f"non_finite_{iteration:06d}.pt"
        try:
            self._write(path, {**report, "advice": advice}, learner, data)
            kept = f"The state and what was learned from last: {path}, in words: .json beside it"
        except OSError as error:
            kept = f"The state could not be written down ({error})"
        raise UnilabError(f"{what}. {_in_words(report)}. {kept}. {advice}")

    def _advice(self, report: Mapping[str, Any]) -> str:
        """What to try. Rewards first: they are what most often is at fault and is not the rate."""
        learner = self._config.learner
        most = _magnitude(report["tensors"].get("data.reward", {"min": 0.0, "max": 0.0}))
        if most > HUGE_REWARD:
            terms = ", ".join(self._config.rewards)
            return f"Rewards reach {most:.1e}: lower the weights of the terms ({terms})"
        settings = getattr(self._config.learners, learner)
        words = [
            f"learners.{learner}.{key}={0.1 * getattr(settings, key):g}"
            for key in ("learning_rate", "final_learning_rate")
            if hasattr(settings, key)
        ]
        if getattr(settings, "schedule", "") == "adaptive":
            words.append(f"learners.{learner}.schedule=fixed")
        steps = " ".join(words)
        saved = list_checkpoints(self._run_dir)
        if not saved:
            return f"There is no good checkpoint: begin anew with smaller steps: {steps}"
        return (
            f"The last good checkpoint is {saved[-1][1]}; go on from it with smaller steps: "
            f"unilab train --resume {self._run_dir} {steps}"
        )

    def _write(
        self,
        path: Path,
        report: Mapping[str, Any],
        learner: Mapping[str, Any],
        data: Mapping[str, Tensor],
    ) -> None:
        """Write the dump, and the report in words beside it."""
        logs = [dict(log) for log in self._logs]
        content = {
            "iteration": report["iteration"],
            "config": json.dumps(to_plain(self._config)),
            "learner": _on_cpu(learner),
            "data": _on_cpu(data),
            "metrics": logs,
        }
        write_file(path, content)
        text = json.dumps(_strict({**report, "last_metrics": logs}), indent=2, allow_nan=False)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def describe(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Say of each float tensor how many numbers are not finite, and the range of the others.

    Returns:
      `tensors`: name to size, not_finite, min and max (of the finite ones; None without any);
      `not_finite`: names of those that have such numbers; `largest`: names of those with the
      largest finite numbers, largest first.
    """
    rows = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            finite = tensor[torch.isfinite(tensor)].double()
            ends = [float(end) for end in finite.aminmax()] if finite.numel() else [None, None]
            rows[name] = {
                "size": tensor.numel(),
                "not_finite": tensor.numel() - finite.numel(),
                "min": ends[0],
                "max": ends[1],
            }
    by_size = sorted(rows, key=lambda name: -_magnitude(rows[name]))
    return {
        "tensors": rows,
        "not_finite": [name for name, row in rows.items() if row["not_finite"]],
        "largest": by_size[:SHOWN],
    }


def _in_words(report: Mapping[str, Any]) -> str:
    """A sentence on which metrics and which tensors."""
    rows, bad = report["tensors"], report["not_finite"]
    metrics = ", ".join(list(report["metrics"])[:SHOWN]) or "none of the last row"
    if bad:
        parts = [f"{name} ({rows[name]['not_finite']} of {rows[name]['size']})" for name in bad]
        tensors = ", ".join(parts[:SHOWN]) + (", ..." if len(parts) > SHOWN else "")
    else:
        first = report["largest"][0]
        tensors = f"none; the largest number is {_magnitude(rows[first]):.1e}, in {first}"
    return f"Metrics that are not finite: {metrics}. Tensors: {tensors}"


def _bad_metrics(log: Mapping[str, float]) -> dict[str, str]:
    return {name: str(value) for name, value in log.items() if not math.isfinite(value)}


def _magnitude(row: Mapping[str, Any]) -> float:
    return max(abs(float(row[end] or 0.0)) for end in ("min", "max"))


def _tensors(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor in nested mappings, by its path."""
    if isinstance(value, Tensor):
        return [(path, value)]
    if isinstance(value, Mapping):
        parts = [_tensors(item, f"{path}.{key}" if path else key) for key, item in value.items()]
        return [pair for part in parts for pair in part]
    return []


def _on_cpu(value: Any) -> Any:
    """Copy tensors to host memory: a view would bring all of the memory that it looks at."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    return value


def _strict(value: Any) -> Any:
    """What JSON can hold: a number that is not finite becomes its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return value
