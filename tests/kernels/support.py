"""A made-up robot that feeds every term of the library, and arrays full of random numbers."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import unilab_kernels
from tests.reference.step_reference import BLOCK
from unilab_kernels import terms
from unilab_kernels.fuse import ARRAYS, FusedKernel, assemble, seed_key
from unilab_kernels.spec import CarriedField, KernelSpec, StateField
from unilab_kernels.terms import TermError

for _module in pkgutil.iter_modules(unilab_kernels.__path__):
    importlib.import_module(f"unilab_kernels.{_module.name}")

NUM_JOINTS, NUM_FEET = 5, 4
NQ, NV, NUM_SUBSTEPS = 7 + NUM_JOINTS, 6 + NUM_JOINTS, 3
NUM_STATE, NUM_SENSOR = 1 + NQ + NV + 1, 7 * NUM_FEET + 5
DTYPES = {"f32": np.float32, "f64": np.float64, "u8": np.uint8, "i32": np.int32, "u64": np.uint64}
CONTROL_DT = 0.05

# Parameters of each term of the library that has some; the others take none.
PARAMETERS: dict[tuple[str, str], dict[str, Any]] = {
    ("reward", "track_lin_vel"): {"std": 0.7},
    ("reward", "track_ang_vel"): {"std": 0.9},
    ("reward", "base_height_low"): {"min_height_m": 0.3},
    ("reward", "stand_still"): {"threshold": 0.4},
    ("reward", "feet_air_time"): {"target_s": 0.2, "threshold": 0.4},
    ("reward", "feet_clearance"): {"height_m": 0.1, "threshold": 0.4},
    ("reward", "gait_contact"): {"stance_fraction": 0.6},
    ("reward", "swing_height"): {"height_m": 0.5, "stance_fraction": 0.55},
    ("reward", "feet_apart"): {"min_m": 0.2},
    ("reward", "cart_centered"): {"std": 0.5},
    ("termination", "tilted"): {"limit_cos": 0.5},
    ("termination", "base_low"): {"height_m": 0.1},
    ("termination", "cart_out"): {"limit_m": 1.2},
    ("termination", "pole_fallen"): {"limit_rad": 1.5},
    ("command", "velocity"): {
        **{"vx_min": -1.0, "vx_max": 1.5, "vy_min": -0.5, "vy_max": 0.7},
        **{"yaw_min": -2.0, "yaw_max": 1.0, "resample_min_s": 1.0, "resample_max_s": 2.0},
        **{"standing_fraction": 0.2, "turning_fraction": 0.2, "forward_fraction": 0.2},
    },
    ("command", "gait"): {"frequency_hz": 1.5, "threshold": 0.4},
    ("interval", "push"): {
        **{"min_s": 0.5, "max_s": 1.0, "xy_ms": 0.5, "z_ms": 0.3},
        **{"roll_pitch_rads": 0.4, "yaw_rads": 0.7},
    },
    ("reset", "reset_base"): {
        **{"xy_m": 0.4, "z_min_m": 0.01, "z_max_m": 0.05, "yaw_rad": 2.0},
        **{"lin_vel_ms": 0.2, "ang_vel_rads": 0.3},
    },
    ("reset", "reset_joints"): {"pos_rad": 0.2, "vel_rads": 0.5},
    ("reset", "terrain_spawn"): {"first_levels": 2.0},
    ("reward", "base_height_low_ground"): {"min_height_m": 0.3},
    ("reward", "feet_clearance_ground"): {"height_m": 0.1, "threshold": 0.4},
    ("termination", "base_low_ground"): {"height_m": 0.1},
    ("termination", "terrain_left"): {"margin_m": 0.4},
}


def library(stage: str) -> list[str]:
    """The terms of a stage that the package itself brings."""
    return [
        name
        for name in terms.names(stage)
        if terms.find(stage, name).function.__module__.startswith("unilab_kernels.")
    ]


def chosen(stage: str, **more: Any) -> dict[str, dict[str, Any]]:
    """All terms of a stage with their parameters."""
    return {name: {**PARAMETERS.get((stage, name), {}), **more} for name in library(stage)}


def columns(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def make_spec(**changes: Any) -> KernelSpec:
    """A task on the made-up robot: free base, five joints, four feet, a cart-pole's sensors."""
    draw = np.random.default_rng(5)
    first_v, feet, cart = 1 + NQ, 7 * NUM_FEET, 7 * NUM_FEET
    middle = draw.normal(0.0, 0.3, NUM_JOINTS)
    fields: dict[str, Any] = {
        "name": "made_up",
        "num_actions": NUM_JOINTS,
        "qpos_column": 1,
        "nq": NQ,
        "qvel_column": first_v,
        "nv": NV,
        "state_fields": {
            "base_pos": StateField(columns(1, 3)),
            "base_quat": StateField(columns(4, 4)),
            # Joints out of order: columns need not be a run.
            "joint_pos": StateField(tuple(8 + j for j in (1, 0, 2, 4, 3))),
            "base_lin_vel_w": StateField(columns(first_v, 3)),
            "ang_vel_b": StateField(columns(first_v + 3, 3)),
            "joint_vel": StateField(tuple(first_v + 6 + j for j in (1, 0, 2, 4, 3))),
            "clock": StateField((NUM_STATE - 1,), scalar=True),
            "feet_contact": StateField(columns(0, NUM_FEET), source="sensor", reduce="any"),
            "feet_pos_w": StateField(columns(NUM_FEET, 3 * NUM_FEET), source="sensor"),
            "feet_vel_w": StateField(columns(4 * NUM_FEET, feet - 4 * NUM_FEET), source="sensor"),
            "cart_pos": StateField((cart,), source="sensor", scalar=True),
            "cart_vel": StateField((cart + 1,), source="sensor", scalar=True),
            "pole_angle": StateField((cart + 2,), source="sensor", scalar=True),
            "pole_vel": StateField((cart + 3,), source="sensor", reduce="max", scalar=True),
            "spare": StateField((cart + 4,), source="sensor", scalar=True),
        },
        "carried_fields": {
            "command": CarriedField(3),
            "command_timer": CarriedField(1, scalar=True, reset=5.0),
            "fixed_command": CarriedField(4, reset=None),
            "push_timer": CarriedField(1, scalar=True, reset=0.25),
            "feet_air_time": CarriedField(NUM_FEET, update="track_air_time"),
            "gait_phase": CarriedField(1, scalar=True),
            "terrain_level": CarriedField(1, scalar=True, reset=None),
            "terrain_column": CarriedField(1, scalar=True, reset=None),
            "terrain_start": CarriedField(2, reset=None),
            "fixed_tile": CarriedField(3, reset=None),
            "terrain_walk": CarriedField(6, update="measure_walk"),
        },
        "constants": {
            "control_dt": CONTROL_DT,
            "episode_length_s": 2.0,
            # 4 m x 3 m around the origin: some points are beyond its end.
            "height_grid": draw.normal(0.0, 0.2, 9 * 7),
            "grid_frame": np.array([-2.0, -1.5, 2.0, 9.0, 7.0]),
            "tile_frame": np.array([-1.0, -0.5, 1.0, 3.0, 2.0]),
            "scan_x": draw.uniform(-0.8, 0.8, 11),
            "scan_y": draw.uniform(-0.6, 0.6, 11),
            "default_joint_pos": middle,
            "soft_lower": middle - 0.4,
            "soft_upper": middle + 0.5,
            "pose_weights": draw.uniform(0.1, 1.0, NUM_JOINTS),
            "kp": draw.uniform(20.0, 40.0, NUM_JOINTS),
            "kd": draw.uniform(0.5, 1.0, NUM_JOINTS),
            "effort_limit": draw.uniform(5.0, 20.0, NUM_JOINTS),
            "joint_qpos_ids": np.array([8, 7, 9, 11, 10], float),
            "joint_qvel_ids": np.array([7, 6, 8, 10, 9], float),
            "base_qpos_start": 0.0,
            "base_qvel_start": 0.0,
        },
        "actor": {"gravity": {}},
        "critic": {"base_height": {}},
        "rewards": {"alive": {"weight": 1.0}},
    }
    return KernelSpec(**{**fields, **changes})


def random_arrays(
    kernel: FusedKernel,
    spec: KernelSpec,
    num_envs: int,
    *,
    seed: int = 0,
    num_state: int = NUM_STATE,
    num_sensor: int = NUM_SENSOR,
    num_substeps: int = NUM_SUBSTEPS,
    key: tuple[int, int] = (7, 0),
    max_steps: int = 40,
) -> dict[str, np.ndarray]:
    """All arrays of the kernels: inputs random, outputs poisoned with NaN or 255."""
    draw = np.random.default_rng(seed)
    n, blocks = num_envs, -(-num_envs // BLOCK)
    shapes: dict[str, tuple[int, ...]] = {
        "state_in": (n, num_substeps, num_state),
        "sensor_in": (n, num_substeps, num_sensor),
        "policy_action_in": (n, spec.num_actions),
        "ctrl_out": (n, num_substeps, spec.num_actions),
        "fields_io": (n, kernel.num_fields),
        "log_io": (blocks, len(kernel.log_names)),
        "scratch_io": (blocks, kernel.num_scratch),
        "obs_out": (n, kernel.num_obs),
        "critic_obs_out": (n, kernel.num_critic_obs),
        "final_obs_out": (n, kernel.num_obs),
        "final_critic_obs_out": (n, kernel.num_critic_obs),
        "reset_qpos_out": (n, spec.nq),
        "reset_qvel_out": (n, spec.nv),
        "push_out": (n, spec.nv),
    }
    arrays: dict[str, np.ndarray] = {}
    for name, (_, dtype, _) in ARRAYS.items():
        is_float = dtype.startswith("f")
        arrays[name] = np.full(shapes.get(name, (n,)), np.nan if is_float else 255, DTYPES[dtype])
    arrays["state_in"][:] = draw.normal(0.0, 0.6, arrays["state_in"].shape)
    quat = arrays["state_in"][:, :, spec.qpos_column + 3 : spec.qpos_column + 7]
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    arrays["sensor_in"][:] = draw.normal(0.0, 0.8, arrays["sensor_in"].shape)
    arrays["policy_action_in"][:] = draw.normal(0.0, 2.0, arrays["policy_action_in"].shape)
    fields = arrays["fields_io"]
    fields[:] = draw.normal(0.0, 0.5, fields.shape)
    for name in ("command_timer", "push_timer"):  # a third is due in this step
        if name in kernel.carried_slices:
            fields[:, kernel.carried_slices[name]] = draw.uniform(-0.1, 0.3, (n, 1))
    if "fixed_command" in kernel.carried_slices:
        fixed = fields[:, kernel.carried_slices["fixed_command"]]
        fixed[:, 0] = draw.random(n) < 0.2
    if "feet_air_time" in kernel.carried_slices:
        air = fields[:, kernel.carried_slices["feet_air_time"]]
        air[:] = np.clip(air, 0.0, None)
    if "gait_phase" in kernel.carried_slices:  # some stand at a half turn, some are close to one
        phases = draw.uniform(0.0, 1.0, n)
        phases[::5], phases[1::5] = 0.5 * (draw.random(n)[::5] < 0.5), 0.98
        fields[:, kernel.carried_slices["gait_phase"].start] = phases
    if "fixed_tile" in kernel.carried_slices:
        tiles = fields[:, kernel.carried_slices["fixed_tile"]]
        tiles[:] = draw.integers(0, 2, (n, 3))
        fields[:, kernel.carried_slices["terrain_level"].start] = draw.integers(0, 3, n)
    if "command" in kernel.carried_slices:  # some of them stand
        fields[: n // 3, kernel.carried_slices["command"]] *= 0.1
    arrays["failure_io"][:] = 0
    arrays["start_step_io"][:] = draw.integers(0, 5, n)
    arrays["step_io"][:] = arrays["start_step_io"] + draw.integers(0, max_steps, n)
    arrays["episode_io"][:] = draw.integers(1, 9, n)
    arrays["return_io"][:] = draw.normal(0.0, 3.0, n)
    arrays["log_io"][:] = draw.normal(0.0, 1.0, arrays["log_io"].shape)
    # The last observation, which a failed row keeps.
    for name in ("obs_out", "critic_obs_out"):
        arrays[name][:] = draw.normal(0.0, 1.0, arrays[name].shape)
    given: dict[str, Any] = {
        "default_qpos_in": np.array([0.1, -0.2, 0.4, 0.8, 0.0, 0.6, 0.0, *np.zeros(spec.nq - 7)]),
        "ctrl_offset_in": draw.normal(0.0, 0.5, spec.num_actions),
        "ctrl_scale_in": draw.uniform(0.2, 0.5, spec.num_actions),
        "action_clip_in": np.array([1.5], np.float32),
        "weights_in": kernel.weights.copy(),
        "params_in": kernel.params.copy(),
        "constants_in": kernel.constants.copy(),
        "seed_in": seed_key(*key),
        "max_steps_in": np.array([max_steps], np.int32),
    }
    return {name: given.get(name, array) for name, array in arrays.items()}


def copied(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in arrays.items()}


def step(module: Any, arrays: dict[str, np.ndarray], blocks: tuple[int, int] | None = None) -> None:
    """Phase A over all envs, or over some blocks of them."""
    num_envs = len(arrays["step_io"])
    first, last = blocks or (0, -(-num_envs // BLOCK))
    module.step_serial(first, last, num_envs, *(arrays[name] for name in ARRAYS))


def one_env(arrays: dict[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
    """Views of one env: a batch of its own."""
    per_env = [name for name, (shape, _, _) in ARRAYS.items() if shape.startswith("(N,")]
    single = {name: array[i : i + 1] for name, array in arrays.items() if name in per_env}
    shared = {name: arrays[name] for name in arrays if name not in per_env}
    for name in ("log_io", "scratch_io"):
        shared[name] = np.zeros((1, arrays[name].shape[1]), arrays[name].dtype)
    return {name: {**shared, **single}[name] for name in ARRAYS}


def assert_same(
    actual: dict[str, np.ndarray], wanted: dict[str, np.ndarray], atol: float = 2e-6
) -> None:
    """Compare every array but the scratch: integers and inputs exactly, floats to 1e-5."""
    for name, (_, dtype, _) in ARRAYS.items():
        if name == "scratch_io":
            continue
        if name.endswith("_in") or not dtype.startswith("f"):
            np.testing.assert_array_equal(actual[name], wanted[name], err_msg=name)
        else:
            np.testing.assert_allclose(
                actual[name], wanted[name], rtol=1e-5, atol=atol, equal_nan=True, err_msg=name
            )


def import_terms(folder: Path, name: str, text: str) -> ModuleType:
    """Write a file of terms, as a user does, and import it."""
    path = folder / f"{name}.py"
    path.write_text(text)
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# How a user's file of terms begins.
HEAD = "import math\nfrom unilab_kernels.terms import *\nfrom unilab_kernels.terms import reward, "
HEAD += "observation, derived, command, termination, interval, carry, reset\n"


def refused(words: list[str], **changes: Any) -> None:
    """Assembling the made-up task with these changes raises a `TermError` that has the words."""
    with pytest.raises(TermError) as error:
        assemble(make_spec(**changes))
    for word in words:
        assert word in str(error.value), str(error.value)
