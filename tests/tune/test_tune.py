"""`unilab tune` on a real task, its measuring process, and what `train` makes of the result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from unilab.config import load_config
from unilab.config.tuned import RUNTIME_KEYS
from unilab.errors import ConfigError, UnilabError
from unilab.runtime.threads import available_cpus
from unilab.tune import probe as probe_module
from unilab.tune.candidates import auto_plan
from unilab.tune.command import tune
from unilab.tune.machine import cpu_model, gpu_model, this_machine
from unilab.tune.measuring import MeasureError
from unilab.tune.probe import ProcessProbe

TINY = ("learners.ppo.num_steps=4", "learners.ppo.minibatches=2", "learners.ppo.epochs=2")


def unilab(*words: str, folder: Path, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
    """Run a command with settings kept in `folder`, in use unless it says otherwise."""
    environment = {**os.environ, "UNILAB_CONFIG_DIR": str(folder / "config")}
    environment.pop("UNILAB_NO_TUNED", None)
    return subprocess.run(
        [sys.executable, "-m", "unilab.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which cart-pole was tuned, and what was said."""
    folder = tmp_path_factory.mktemp("tuned")
    done = unilab("tune", "cartpole", *TINY, "--budget", "8", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_tune_shows_the_grid_the_choice_and_the_file(tuned: tuple[Path, str]) -> None:
    folder, said = tuned
    (path,) = folder.glob("config/tuned/cartpole/*.yaml")
    assert f"written  {path}" in said
    for part in (
        "task     cartpole: 256 envs",
        "number of envs",
        "chosen",
        "measured, env-steps/s",
    ):
        assert part in said
    for key in RUNTIME_KEYS:
        assert f"  {key}=" in said
    assert list(folder.iterdir()) == [folder / "config"]  # nothing else was left


def test_explain_shows_the_origin_and_no_tuned_leaves_it_out(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    (path,) = folder.glob("config/tuned/cartpole/*.yaml")
    done = unilab("explain", "cartpole", *TINY, folder=folder)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "runtime.threads " in line]
    assert f"tuned on this machine, {path}" in rows[0]
    plain = unilab("explain", "cartpole", "--no-tuned", folder=folder)
    assert "tuned" not in plain.stdout


def test_train_uses_the_settings_and_saves_them_with_the_run(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    (path,) = folder.glob("config/tuned/cartpole/*.yaml")
    words = ["train.iterations=1", "evaluation.at_end=false", "evaluation.video=false"]
    done = unilab("train", "cartpole", *TINY, *words, f"log.dir={folder}/runs", folder=folder)
    assert done.returncode == 0, done.stderr
    (line,) = [row for row in done.stdout.splitlines() if row.startswith("tuned ")]
    assert str(path) in line
    assert "--no-tuned" in line
    (saved,) = folder.glob("runs/cartpole/*/config.yaml")
    assert "  threads: auto" not in saved.read_text()


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "unilab.cli", "tune", "cartpole", *TINY],
        env={**os.environ, "UNILAB_CONFIG_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert any("ready" in line for line in child.stdout)
    workers = psutil.Process(child.pid).children(recursive=True)
    assert workers
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert stderr.strip() == "interrupted"
    assert not any(worker.is_running() for worker in workers)
    assert list(tmp_path.rglob("*.yaml")) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("cartpole", "runtime.threads=1"), "runtime.threads: `unilab tune` finds it; leave it"),
        (("cartpol",), "did you mean 'cartpole'?"),
        (("cartpole", "rewards.no_such={weight: 1.0}"), "no_such"),
        ((), "write: unilab tune TASK"),
    ],
)
def test_bad_input_ends_with_a_line_and_writes_nothing(
    words: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    done = unilab("tune", *words, "--budget", "8", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.rglob("*.yaml")) == []


def test_settings_that_could_not_be_written_are_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNILAB_CONFIG_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="UNILAB_CONFIG_DIR"):
        tune(load_config("cartpole"))


# -- the measuring process: children that misbehave, as small real programs ------------------------

ANSWERS = """
import json, os, sys, time
print(json.dumps({"device": "cpu", "layer": "omp"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    threads = request.get("threads")
    if threads == 1:
        print("a last word", file=sys.stderr, flush=True)
        os.abort()
    if threads == 2:
        time.sleep(600)
    if threads == 3:
        print(json.dumps({"error": "it did not work"}), flush=True)
    else:
        print(json.dumps({"seconds": 0.5 * request["num_envs"]}), flush=True)
"""


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_child_that_crashes_hangs_or_refuses_is_an_error_of_that_setting_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_module, "TIMEOUT_S", 1.0)
    with ProcessProbe(load_config("cartpole").config, 0.1, child(ANSWERS)) as probe:
        assert (probe.device, probe.layer) == ("cpu", "omp")
        assert probe.update(4, 2) == 1.0
        with pytest.raises(MeasureError, match=r"ended with code -6.*a last word"):
            probe.update(1, 2)
        assert probe.update(4, 4) == 2.0  # by a new child
        with pytest.raises(MeasureError, match="no answer within 1 s"):
            probe.update(2, 2)
        with pytest.raises(MeasureError, match="it did not work"):
            probe.update(3, 2)
        assert probe.update(4, 4) == 2.0


def test_a_child_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("cartpole").config
    for code, kind, text in (
        ("raise SystemExit('no such library')", UnilabError, "no such library"),
        ("import json; print(json.dumps({'config': 'bad key'}))", ConfigError, "bad key"),
        ("import json; print(json.dumps({'error': 'boom'}))", UnilabError, "boom"),
    ):
        with pytest.raises(kind, match=text), ProcessProbe(config, 0.1, child(code)):
            pass


def test_no_child_outlives_its_probe() -> None:
    code = "import os, sys; print('%d' % os.getpid(), file=sys.stderr, flush=True)\n" + ANSWERS
    with ProcessProbe(load_config("cartpole").config, 0.1, child(code)) as probe:
        assert probe._child is not None
        process_id = probe._child.pid
        os.kill(process_id, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


def test_the_real_worker_measures_collecting_and_learning() -> None:
    config = load_config("cartpole", [*TINY, "physics.num_envs=128"]).config
    cpus = available_cpus()
    with ProcessProbe(config, 0.02) as probe:
        plan = auto_plan(cpus, 128)
        seconds = probe.collect(plan, 128)
        assert 0.0 < seconds < 60.0
        assert {"physics", "kernel", "policy"} <= set(probe.stages[plan])
        per_step_s = sum(probe.stages[plan].values()) * 1e-3
        assert per_step_s * config.learners.ppo.num_steps == pytest.approx(seconds, rel=0.2)
        assert 0.0 < probe.update(1, 128) < 60.0
        assert probe.collect(auto_plan(cpus, 64), 64) > 0.0
        with pytest.raises(MeasureError, match="GiB"):
            probe.collect(auto_plan(cpus, 2**30), 2**30)
        assert probe.collect(plan, 128) > 0.0


# -- the machine --------------------------------------------------------------------------------


def test_the_machine_is_named_after_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Fast  CPU  9000\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Fast CPU 9000"
    assert cpu_model(tmp_path / "none") != ""
    gpu = tmp_path / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA Test\nIRQ: 1\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_model(tmp_path / "gpus") == "NVIDIA Test"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_model(tmp_path / "gpus") is None
    assert this_machine().cpus == available_cpus()
    assert this_machine() == this_machine()


def test_light_commands_stay_light() -> None:
    """`train` looks for tuned settings before anything heavy is loaded."""
    code = (
        "import json, sys\nfrom unilab.tune.machine import this_machine\n"
        "from unilab.config import load_config\nload_config('cartpole', machine=this_machine())\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numba", "mujoco", "numpy"} & set(json.loads(done.stdout))
