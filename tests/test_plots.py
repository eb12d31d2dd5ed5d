"""Plots: the picture exists, has the size of a page, and copes with gaps in the metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unilab.errors import ConfigError
from unilab.plots import MAX_POINTS, Curves, _thin, compare_curves, learning_curve


def write_run(path: Path, iterations: int, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    with path.open("w") as file:
        for i in range(1, iterations + 1):
            line = {
                "iteration": i,
                "time_unix_s": 1e9 + i,
                "elapsed_s": 0.5 * i,
                "counter/env_steps": 1000.0 * i,
                "episode/return": None if i < 3 else float(i + random.normal()),
                "episode/length_s": 0.2 * i,
                "metric/lin_vel_error": 1.0 / i,
                "reward/track_lin_vel": 0.1 * i,
                "reward/action_rate": -0.01 * i,
                "system/env_steps_per_s": 2000.0,
                "stage/physics_ms": 300.0,
                "stage/learner_ms": 200.0,
            }
            file.write(json.dumps(line) + "\n")
    return path


def is_drawn(path: Path) -> bool:
    """A picture of a page's size, with ink in each quarter."""
    image = np.asarray(Image.open(path).convert("L"))
    height, width = image.shape
    quarters = [image[y : y + height // 2, x : x + width // 2]
                for y in (0, height // 2) for x in (0, width // 2)]  # fmt: skip
    return height > 600 and width > 900 and all((q < 128).sum() > 300 for q in quarters)


@pytest.mark.parametrize("iterations", [1, 2, 1500])
def test_learning_curve_of_short_and_long_runs(tmp_path: Path, iterations: int) -> None:
    run = write_run(tmp_path / "metrics.jsonl", iterations)
    learning_curve(run, tmp_path / "new" / "curve.png", "a run")
    assert is_drawn(tmp_path / "new" / "curve.png")


def test_learning_curve_of_a_run_with_nothing_but_iterations(tmp_path: Path) -> None:
    run = tmp_path / "metrics.jsonl"
    run.write_text('{"iteration": 1, "elapsed_s": 1.0, "loss/value": null}\n')
    learning_curve(run, tmp_path / "curve.png", "empty")
    assert Image.open(tmp_path / "curve.png").size[0] > 900


def test_compare_curves_of_seeds_of_different_length(tmp_path: Path) -> None:
    runs = [("go1", write_run(tmp_path / f"{s}.jsonl", 20 + 10 * s, s)) for s in range(3)]
    compare_curves([*runs, ("other", runs[0][1])], tmp_path / "compare.png")
    assert is_drawn(tmp_path / "compare.png")


def test_columns_hold_gaps_as_nan_and_know_both_axes(tmp_path: Path) -> None:
    curves = Curves(write_run(tmp_path / "m.jsonl", 4))
    returns = curves.get("episode/return")
    assert returns is not None
    assert np.isnan(returns).tolist() == [True, True, False, False]
    np.testing.assert_allclose(curves.x_steps, [0.001, 0.002, 0.003, 0.004])
    np.testing.assert_allclose(curves.minutes, [0.5 / 60, 1 / 60, 1.5 / 60, 2 / 60])
    assert list(curves.group("stage/", "_ms")) == ["physics", "learner"]
    assert curves.get("loss/none") is None


def test_thinning_averages_neighbours() -> None:
    x = np.arange(2 * MAX_POINTS, dtype=np.float64)
    thin_x, thin_y = _thin(x, 3 * x)
    np.testing.assert_allclose(thin_x, np.arange(MAX_POINTS) * 2 + 0.5)
    np.testing.assert_allclose(thin_y, 3 * thin_x)


def test_no_metrics_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no metrics at"):
        learning_curve(tmp_path / "none.jsonl", tmp_path / "x.png", "")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="nothing to draw"):
        learning_curve(tmp_path / "empty.jsonl", tmp_path / "x.png", "")
    with pytest.raises(ConfigError, match="no run to compare"):
        compare_curves([], tmp_path / "x.png")


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, unilab.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
