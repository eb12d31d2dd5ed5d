"""The command as a person uses it, each in a process of its own, from a task file to a policy."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.support import TINY, cli, last_checkpoint, metrics, only_run
from unilab.config import all_keys, list_tasks, load_config
from unilab.config.base import to_plain
from unilab.config.layers import leaves
from unilab.tasks.base import build_task

MY_TASK = '''\
"""A cart-pole that is to stand at a place of its own, with terms of its own."""

from unilab.tasks.cartpole import TASK as CARTPOLE
from unilab.tasks.base import Task
from unilab_kernels.terms import observation, reward


@observation(size=1)
def distance(cart_pos, place_m, out):
    """Distance of the cart from its place, m."""
    out[0] = cart_pos - place_m


@reward
def nearness(cart_pos, place_m, floor_m2):
    """One over the squared distance; `floor_m2` keeps it finite."""
    d = cart_pos - place_m
    return 1.0 / (0.0 * d * d + floor_m2)


TASK = Task(robot="my_robot.xml", describe=CARTPOLE.describe)
'''
MY_YAML = """\
description: Stand at a place.
physics: {num_envs: 8, timestep_s: 0.01, substeps: 2}
observations:
  actor: {pole_state: {noise: 0.01}, distance: {place_m: 0.5}}
  critic: {pole_state: {}, distance: {place_m: 0.5}, cart_state: {}}
rewards:
  pole_upright: {weight: 1.0}
  nearness: {weight: 0.1, place_m: 0.5, floor_m2: 0.1}
terminations: {pole_fallen: {limit_rad: 0.8}}
events: {reset_joints: {pos_rad: 0.1}}
learners: {ppo: {num_steps: 6, minibatches: 2}}
"""


def unilab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command's code in its own process, with standard input closed."""
    return subprocess.run(
        [sys.executable, "-m", "unilab.cli", *arguments],
        cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture
def my_task(tmp_path: Path) -> Path:
    """A user's task: Python, YAML and robot side by side, outside the package."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_task.py").write_text(MY_TASK)
    (folder / "my_task.yaml").write_text(MY_YAML)
    robot = build_task(load_config("cartpole").config).robot.path.read_text()
    (folder / "my_robot.xml").write_text(robot)
    return folder / "my_task.py"


def test_a_task_of_ones_own_from_training_to_export_and_a_term_that_goes_wrong(my_task, tmp_path):
    small = ("learners.ppo.actor_hidden=[16]", "learners.ppo.critic_hidden=[16]", "seed=3",
             "evaluation.episodes=4", "evaluation.episode_length_s=0.5", "evaluation.video=false",
             "device=cpu", "train.iterations=2")  # fmt: skip
    done = unilab("train", "mine/my_task.py", *small, "--name", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    run = only_run(tmp_path)
    assert run.parent.name == "my_task"
    assert run.name.endswith("_first")
    assert {p.name for p in run.iterdir()} >= {
        "config.yaml", "run.json", "metrics.jsonl", "stages.json", "checkpoints", "evaluation.json",
        "learning_curve.png", "tensorboard",
    }  # fmt: skip
    assert metrics(run)[-1]["reward/nearness"] == pytest.approx(0.1 * 10.0, rel=1e-5)
    assert json.loads((run / "evaluation.json").read_text())["episodes"] == 4

    again = cli("eval", "mine/my_task.py", "--run", "first", cwd=tmp_path)
    assert again.code == 0, again
    assert "evaluation over 4 episodes" in again.out
    assert cli("export", "--run", "-1", "--output", "p.onnx", cwd=tmp_path).code == 0
    assert (tmp_path / "p.onnx").is_file()

    failed = unilab(
        "train", "--resume", "latest", "train.iterations=4", "rewards.nearness.floor_m2=0",
        cwd=tmp_path,
    )  # fmt: skip
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "nearness" in failed.stderr
    assert "not finite" in failed.stderr
    assert "the last checkpoint is" in failed.stderr
    assert "iter_000002.pt" in failed.stderr
    assert json.loads((run / "stages.json").read_text())["state"] == "failed"
    on = cli("train", "--resume", "latest", "rewards.nearness.floor_m2=0.1", cwd=tmp_path)
    assert on.code == 0, on
    assert last_checkpoint(run)["progress"]["iteration"] == 4


def test_list_names_the_tasks_with_their_description(tmp_path):
    done = unilab("list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert found == {task.name: task.description for task in list_tasks()}
    assert {"cartpole", "go1_walk"} <= found.keys()


def test_explain_gives_every_value_with_its_origin_and_meaning(tmp_path):
    overrides = (
        "physics.num_envs=64",
        "rewards.effort.weight=-0.2",
        "randomization.gravity.scale=[0.9, 1.1]",
    )
    out = cli("explain", "cartpole", *overrides, cwd=tmp_path).out
    loaded = load_config("cartpole", overrides)
    meanings = {key.dotted: key.description for key in all_keys()}
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    off = loaded.config.randomization.names_off()
    assert f"off: {', '.join(off)}" in out
    for key, value in leaves(to_plain(loaded.config)):
        if key.startswith("randomization.") and key.split(".")[1] in off:
            continue
        assert str("null" if value is None else value) in rows[key]
        assert loaded.origins.get(key, "default") in rows[key]
        assert meanings.get(key, "") in rows[key]
    assert "command line" in rows["physics.num_envs"]
    assert re.search(r"configs/cartpole\.yaml:\d+", rows["actions.clip"])
    assert "default" in rows["actions.scale"]


@pytest.mark.parametrize("task", [task.name for task in list_tasks()])
def test_explain_lays_the_observations_out_without_a_gap(tmp_path, task):
    out = cli("explain", task, cwd=tmp_path).out
    kernel = build_task(load_config(task).config).kernel
    for group, size in (("actor", kernel.num_obs), ("critic", kernel.num_critic_obs)):
        head, rest = out.split(f"observations.{group}: ")[1].split("\n", 1)
        assert head == f"{size} numbers"
        ranges = re.findall(r"^  \[ *(\d+): *(\d+)\]  (\w+)", rest.split("\n\n")[0], re.MULTILINE)
        at = 0
        for start, stop, _ in ranges:
            assert int(start) == at < int(stop)
            at = int(stop)
        assert at == size
        config = load_config(task).config
        assert [name for _, _, name in ranges] == list(getattr(config.observations, group))


def test_explain_shows_terms_with_weight_parameters_and_summary(tmp_path):
    out = cli("explain", "cartpole", cwd=tmp_path).out
    (line,) = [line for line in out.splitlines() if "cart_centered " in line and "exp" in line]
    assert "+1" in line
    assert "std=0.5" in line
    assert "cart near" in line.lower()
    assert "commands: none" in out
    (actuator,) = [line for line in out.splitlines() if line.strip().startswith("slide ")]
    assert "motor" in actuator
    assert "-1 1" in actuator


def test_explain_kernel_is_a_module_that_compiles(tmp_path):
    done = unilab("explain", "cartpole", "--kernel", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, text = done.stdout.split("\n", 1)
    assert Path(first.removeprefix("# ")).read_text() == text.rstrip("\n") + "\n"
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert {"apply_action", "step_serial", "step_parallel", "sample_resets"} <= functions
    (tmp_path / "shown.py").write_text(text)
    program = "import shown; print(shown.step_serial.py_func.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "step_serial\n", ran.stderr


def test_a_run_needs_no_keyboard_no_screen_and_no_account(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "unilab.cli", "train", "cartpole", *TINY, "train.iterations=1"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "?" not in done.stdout.replace("ETA ?", "")
    config = (only_run(tmp_path) / "config.yaml").read_text()
    assert "\ndevice: cpu\n" in config  # what was asked for is what is saved
