"""Runs held against stored figures, and stored figures that are no use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unilab.errors import ConfigError
from unilab.monitor.baseline import compare, load_baseline
from unilab.monitor.machine import describe_machine, differences

HERE = {"cpu": "A", "cpus": 2, "gpu": None}
RUN = {"task": "cartpole", "num_envs": 64, "device": "cpu"}


def store(path: Path, machine=HERE, run=RUN, **values) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "run": run, "env_steps_per_s": 1000.0} | values
    path.write_text(json.dumps(content))
    return path


def held(path: Path, rate, *, run=RUN, machine=HERE, any_machine=False):
    baseline = load_baseline(str(path), path.parent)
    return compare(baseline, rate, machine, run, any_machine=any_machine)


@pytest.mark.parametrize(("rate", "failed"), [(1200, False), (901, False), (899, True)])
def test_more_than_ten_percent_below_fails(tmp_path, rate, failed):
    found = held(store(tmp_path / "b.json"), float(rate))
    assert (found.failed, found.refused) == (failed, False)
    assert found.ratio == pytest.approx(rate / 1000)
    assert f"{rate / 1000:.2f} x" in found.text
    assert ("more than 10% slower" in found.text) == failed


def test_a_figure_of_another_machine_is_compared_only_if_asked_for(tmp_path):
    path = store(tmp_path / "b.json", {"cpu": "B", "cpus": 64, "gpu": None})
    found = held(path, 10.0)
    assert (found.ratio, found.failed, found.refused) == (None, False, True)
    assert "cpu B there and A here; cpus 64 there and 2 here" in found.text
    assert "--any-machine" in found.text
    assert held(path, 10.0, any_machine=True).failed


def test_another_task_is_never_compared_and_another_size_is_noted(tmp_path):
    path = store(tmp_path / "b.json")
    other = held(path, 1000.0, run=RUN | {"task": "go1_walk"}, any_machine=True)
    assert other.refused
    assert "of task cartpole" in other.text
    wider = held(path, 1000.0, run=RUN | {"num_envs": 128})
    assert not wider.refused
    assert "num_envs 64 there and 128 here" in wider.text


def test_a_run_that_has_not_told_its_rate_does_not_fail(tmp_path):
    found = held(store(tmp_path / "b.json"), None)
    assert (found.ratio, found.failed, found.refused) == (None, False, False)
    assert "not compared" in found.text


def test_a_table_with_a_median_counts_and_a_file_may_say_little(tmp_path):
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"env_steps_per_s": {"median": 500.0}, "machine": HERE}))
    assert held(path, 500.0).ratio == pytest.approx(1.0)


def test_a_baseline_is_found_as_a_file_a_run_and_a_stored_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = store(tmp_path / "runs/cartpole/first/monitor/report.json")
    stored = store(tmp_path / "benchmark/results/fast.json")
    for name, path in (
        (str(report), report),
        ("runs/cartpole/first", report),
        ("cartpole/first", report),
        ("fast", stored),
        ("fast.json", stored),
    ):
        assert load_baseline(name, Path("runs")).path.resolve() == path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{broken", "cannot be read"),
        ("[1, 2]", "no table of figures"),
        ("{}", "has no 'env_steps_per_s'"),
        ('{"env_steps_per_s": {"mean": 3}}', "has no 'env_steps_per_s'"),
        ('{"env_steps_per_s": true}', "has no 'env_steps_per_s'"),
    ],
)
def test_a_file_that_is_no_baseline_is_a_mistake_with_its_name(tmp_path, text, says):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_baseline(str(path), tmp_path)
    assert str(path) in str(caught.value)


def test_a_name_that_is_not_stored_shows_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "benchmark/results/go1_walk_1024.json")
    with pytest.raises(ConfigError, match="did you mean 'go1_walk_1024'"):
        load_baseline("go1_walk_1042", Path("runs"))


def test_machines_are_the_same_when_cpu_cores_and_gpu_are():
    here = describe_machine()
    assert differences(here, dict(here)) == []
    assert here["versions"]["numpy"]
    assert differences({"gpu": "H200"}, {"gpu": "H200, 570.1"}) == []
    assert differences({"gpu": "H200"}, {"gpu": "A100, 570.1"}) != []
    assert differences({"gpu": "H200"}, {"gpu": None}) != []
