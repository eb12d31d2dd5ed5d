"""`Physics` with mujoco-warp.

State and sensors come to the host as f32, reduced over the substeps on the device: T is 1. Sensors
are of the state before the last integration, as in MuJoCo C. There is no automatic reset: a world
whose numbers blow up is found by the same check as on the CPU backend (failure `diverged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
import torch
import warp as wp
from numpy.typing import NDArray

from unilab.errors import ConfigError, PhysicsError
from unilab.physics.base import F32, F64, FROZEN, I32, U8, StateView, Ticket
from unilab.physics.contact_sizes import ContactSizes
from unilab.physics.mujoco_cpu import make_pool
from unilab.physics.mujoco_warp.lanes import Lane, capture, make_lane
from unilab.physics.mujoco_warp.memory import check_device_memory
from unilab.physics.mujoco_warp.overflow import read_overflow
from unilab.physics.mujoco_warp.variant_rows import supported_fields
from unilab.physics.mujoco_warp.worlds import CARRIED, HostRows, Worlds
from unilab.physics.reset_sensors import ResetSensors
from unilab.physics.variants import Variants

STATE_SIGNATURE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
TIME, QPOS = 0, 1
START_S = 1.0  # clock of a new episode, as on the CPU backend

LOW_FRICTION = 1e-3

CudaGraph = Literal["auto", "on", "off"]
OnOverflow = Literal["end_episode", "raise"]


class WarpTicket:
    """A group's step in flight."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.future: Future[None] | None = None
        self.span = (0, 0)

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the physics of this step began and ended; known after `wait`."""
        return self.span


class MujocoWarp:
    """`Physics` on a GPU, or on Warp's CPU device.

    Args:
      model: the compiled model.
      num_envs: N.
      groups: env range of each group; together they cover [0, N).
      substeps: solver steps a control step.
      takes_max: (S,) bool, sensors whose largest value over the substeps is wanted; else the last.
      sizes: capacity an env for contacts and constraint rows.
      device: "cpu" or "cuda".
      overlap: on the CPU device, step on a thread of its own; a GPU always does.
      ctrl_steps: 1, or `substeps` where ctrl changes within a control step.
      cuda_graph: on: a control step must be one graph launch; auto: where the device can; off.
      on_overflow: end the episodes of the envs concerned, or raise.
      kernel_cache: folder of Warp's compiled kernels.
      variants: copies of the model that envs may be of; see `set_variants`.
      reset_threads: CPU threads that compute the sensors of resets.

    Attributes:
      state: (N, 1, 1 + nq + nv) f32.
      sensors: (N, 1, S) f32.
      ctrl: (N, ctrl_steps, A) f32, pinned; `submit` sends it without a copy.
      failures: (N,) u8, 0 or the failure code of the last step.

    Raises:
      ConfigError: mujoco-warp cannot run the model or does not fit MuJoCo's version; a graph was
        asked for and is refused; the device has too little memory.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_envs: int,
        groups: tuple[slice, ...],
        substeps: int,
        takes_max: NDArray[np.bool_],
        sizes: ContactSizes,
        device: torch.device,
        overlap: bool = False,
        ctrl_steps: int = 1,
        cuda_graph: CudaGraph = "auto",
        on_overflow: OnOverflow = "end_episode",
        kernel_cache: Path | None = None,
        variants: Variants | None = None,
        reset_threads: int = 1,
    ) -> None:
        check_versions()
        if variants is not None:
            variants.require(supported_fields(), "mujoco_warp")
        start_warp(kernel_cache)
        self.variants, self._variant_ids = variants, np.zeros(num_envs, np.int32)
        self.model, self.groups, self.sizes = model, groups, sizes
        self._on_overflow = on_overflow
        self._told = 0
        self._notices = _lint(model)
        self.failures: U8 = np.zeros(num_envs, np.uint8)
        lanes = [make_lane(device) for _ in groups]
        self.device = lanes[0].device
        if device.type == "cuda":
            check_device_memory(model, sizes, num_envs, device)
        rows = _make_rows(model, lanes[0], num_envs, ctrl_steps)
        self.ctrl: F32 = rows.ctrl.numpy()
        self.state: F32 = rows.state.numpy()[:, None]
        self.sensors: F32 = rows.sensors.numpy()[:, None]
        self._rows, self._overflow = rows, rows.overflow.numpy()
        self._worst: I32 = rows.worst.numpy()
        self._worlds = [
            self._make_worlds(group, substeps, takes_max, lane) for group, lane in enumerate(lanes)
        ]
        self._solver_exits = all(w.model.opt.graph_conditional for w in self._worlds)
        self.graph = self._record(cuda_graph)
        needs_thread = overlap and device.type == "cpu"
        self._worker = ThreadPoolExecutor(1, "unilab-physics") if needs_thread else None
        num_state = mujoco.mj_stateSize(model, STATE_SIGNATURE)
        self._nominal = np.zeros(num_state)
        mujoco.mj_getState(model, mujoco.MjData(model), self._nominal, STATE_SIGNATURE)
        self._nominal[TIME] = START_S
        self._reset_sensors = ResetSensors(model, STATE_SIGNATURE, num_rows=num_envs)
        self._reset_pool = make_pool(reset_threads, may_pin=False)
        if reset_threads > 1:
            self._reset_sensors.share(
                self._reset_pool, [mujoco.MjData(model) for _ in range(reset_threads)]
            )

    # -- stepping -------------------------------------------------------------------------------

    def submit(self, group: int, ctrl: F32 | F64) -> WarpTicket:
        """Start one control step of a group; ctrl (Ng, ctrl_steps, A), finite.

        A view of `self.ctrl` is sent as it is; anything else is copied there first.
        """
        own = self.ctrl[self.groups[group]]
        if not np.may_share_memory(ctrl, own):
            own[...] = ctrl
        ticket = WarpTicket(group)
        worlds = self._worlds[group]
        if self._worker is None:
            worlds.submit()
        else:
            ticket.future = self._worker.submit(worlds.submit)
        return ticket

    def wait(self, ticket: Ticket) -> StateView:
        """Wait for a step.

        Raises:
          PhysicsError: the device refused the work; or an env asked for more contacts or
            constraint rows than there is room for, with `on_overflow` raise.
        """
        assert isinstance(ticket, WarpTicket)
        envs = self.groups[ticket.group]
        try:
            if ticket.future is not None:
                ticket.future.result()
            ticket.span = self._worlds[ticket.group].lane.wait()
        except RuntimeError as error:
            raise PhysicsError(
                f"mujoco-warp could not step envs [{envs.start}, {envs.stop}): {error}"
            ) from error
        self._read_overflow(ticket.group)
        return StateView(self.state[envs], self.sensors[envs], self.failures[envs])

    def _read_overflow(self, group: int) -> None:
        envs = self.groups[group]
        self.failures[envs] = 0
        bits = self._overflow[envs]
        if not bits.any():
            return
        found = read_overflow(bits, self._worst[group], self.sizes, envs.start)
        if found is None:
            return
        if self._on_overflow == "raise":
            raise PhysicsError(found.message, np.flatnonzero(bits) + envs.start)
        self.failures[envs] = FROZEN * found.failed
        if found.bits & ~self._told:  # said once a bit; the failures are counted in every step
            self._told |= found.bits
            self._notices.append(found.message)

    def events(self, group: int) -> tuple[str, ...]:
        """Return what a person should know of the group's last step, once each."""
        del group  # a notice names its envs
        notices, self._notices = tuple(self._notices), []
        return notices

    # -- state ----------------------------------------------------------------------------------

    def write_state(self, env_ids: I32, qpos: F64 | None, qvel: F64 | None) -> None:
        """Set rows qpos (n, nq) and qvel (n, nv); with qpos given, a new episode begins there."""
        nq = self.model.nq
        if qpos is not None:
            rows = np.tile(self._nominal, (len(env_ids), 1)).astype(np.float32)
            rows[:, QPOS : QPOS + nq] = qpos
            if qvel is not None:
                rows[:, QPOS + nq : QPOS + nq + self.model.nv] = qvel
            self.state[env_ids, 0] = rows[:, : self.state.shape[2]]
        for group, envs in enumerate(self.groups):
            mine = (env_ids >= envs.start) & (env_ids < envs.stop)
            if not mine.any():
                continue
            worlds, local = self._worlds[group], env_ids[mine] - envs.start
            if qpos is not None:
                new_qvel = np.zeros((len(local), self.model.nv)) if qvel is None else qvel[mine]
                worlds.begin(local, qpos[mine], new_qvel)
            elif qvel is not None:
                worlds.push(local, qvel[mine])

    def set_variants(self, env_ids: I32, variant_ids: I32) -> None:
        """Make envs (n,) be of these variants (n,) i32 from their next step or reset on."""
        assert self.variants is not None
        self._variant_ids[env_ids] = variant_ids
        for group, envs in enumerate(self.groups):
            mine = (env_ids >= envs.start) & (env_ids < envs.stop)
            rows = self._worlds[group].variants
            assert rows is not None
            rows.choose(env_ids[mine] - envs.start, variant_ids[mine])

    def reset_sensors(self, env_ids: I32, ctrl: F64) -> None:
        """Compute the sensors of states just written, with MuJoCo C on the host.

        mujoco-warp has no forward pass of some worlds only. What the sensors are of is the state as
        the device has it: rounded to f32.
        """
        if not len(env_ids):
            return
        rows = np.tile(self._nominal, (len(env_ids), 1))
        width = self.state.shape[2] - QPOS
        rows[:, QPOS : QPOS + width] = self.state[env_ids, 0, QPOS:]
        models = None
        if self.variants is not None:
            models = [self.variants.models[v] for v in self._variant_ids[env_ids].tolist()]
        self.sensors[env_ids, 0] = self._reset_sensors.compute(rows, ctrl, models)[:, 0]

    def snapshot(self) -> Mapping[str, Any]:
        """Return what the next step begins with: clock, positions, velocities, warm start."""
        parts = [worlds.read() for worlds in self._worlds]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
          PhysicsError: it is of another backend, model or number of envs.
        """
        nq, nv = self.model.nq, self.model.nv
        if set(snapshot) != set(CARRIED):
            raise PhysicsError("snapshot is of another physics backend; this run is on mujoco_warp")
        arrays = {name: np.asarray(value) for name, value in snapshot.items()}
        wanted = {"qpos": (len(self.state), nq), "qvel": (len(self.state), nv)}
        for name, shape in wanted.items():
            if arrays[name].shape != shape:
                raise PhysicsError(f"snapshot has {name} {arrays[name].shape}, this run {shape}")
        for worlds, envs in zip(self._worlds, self.groups, strict=True):
            worlds.write({name: array[envs] for name, array in arrays.items()})
        self.state[:, 0, TIME] = arrays["time"]
        self.state[:, 0, QPOS : QPOS + nq] = arrays["qpos"]
        self.state[:, 0, QPOS + nq :] = arrays["qvel"]

    def close(self) -> None:
        """Finish what is in flight and release device and threads. May be called twice."""
        if self._worker is not None:
            self._worker.shutdown(wait=True)
            self._worker = None
        for worlds in self._worlds:
            worlds.lane.finish()
        self._worlds = []
        if self._reset_pool.rollout_ is not None:
            self._reset_sensors.close()
            self._reset_pool.close()

    def describe(self) -> str:
        """Say what physics runs on, and whether a control step is one graph launch."""
        graph = "a control step is one graph launch" if self.graph == "on" else self.graph
        if not self._solver_exits:
            graph += " (the driver is older than CUDA 12.4: the solver always takes all iterations)"
        return (
            f"mujoco-warp {version('mujoco-warp')} on {self.device}: {graph}; room for "
            f"{self.sizes.contacts} contacts and {self.sizes.constraints} constraint rows an env"
        )

    # -- construction ---------------------------------------------------------------------------

    def _make_worlds(
        self, group: int, substeps: int, takes_max: NDArray[np.bool_], lane: Lane
    ) -> Worlds:
        envs, rows = self.groups[group], self._rows
        mine = HostRows(
            rows.ctrl[envs], rows.state[envs], rows.sensors[envs], rows.overflow[envs],
            rows.worst[group],
        )  # fmt: skip
        try:
            return Worlds(
                self.model if self.variants is None else self.variants.models[0],
                substeps=substeps, sizes=self.sizes, takes_max=takes_max, start_s=START_S,
                lane=lane, rows=mine, variants=self.variants,
            )  # fmt: skip
        except NotImplementedError as error:
            raise ConfigError(
                f"physics.backend=mujoco_warp: mujoco-warp {version('mujoco-warp')} cannot run "
                f"this model: {error} Take it out of the MJCF file, or use "
                "physics.backend=mujoco_cpu"
            ) from error

    def _record(self, wanted: CudaGraph) -> str:
        """Step once to compile every kernel, then record the graphs. Returns "on" or why not."""
        for worlds in self._worlds:
            before = worlds.read()
            worlds.run_eagerly()
            worlds.write(before)
        if wanted == "off":
            return "no graph (physics.cuda_graph=off)"
        try:
            launches = [capture(worlds.lane, worlds.queue_step) for worlds in self._worlds]
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            if wanted == "on":
                raise ConfigError(
                    f"physics.cuda_graph=on: {self.device} refuses to record a control step: "
                    f"{reason}; use physics.cuda_graph=auto to run without, several times slower"
                ) from error
            self._notices.append(
                f"no graph: {self.device} refuses to record a control step ({reason}); Python "
                "launches every kernel, which is several times slower"
            )
            return f"no graph ({reason})"
        for worlds, launch in zip(self._worlds, launches, strict=True):
            worlds.launch = launch
        return "on"


def check_versions() -> None:
    """Refuse a mujoco-warp that is not made for this MuJoCo.

    Raises:
      ConfigError: their minor versions differ.
    """
    warp_minor = version("mujoco-warp").split(".")[:2]
    if warp_minor != mujoco.__version__.split(".")[:2]:
        raise ConfigError(
            f"mujoco-warp {version('mujoco-warp')} does not fit mujoco {mujoco.__version__}: both "
            f"need the same minor version. Fix: pip install 'mujoco-warp=="
            f"{'.'.join(mujoco.__version__.split('.')[:2])}.*'"
        )


def _lint(model: Any) -> list[str]:
    """Return what is known to go wrong in mujoco-warp and not in MuJoCo C."""
    colliding = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    low = colliding & (model.geom_friction[:, 0] <= LOW_FRICTION)
    if not low.any():
        return []
    return [
        f"{int(low.sum())} geoms have a sliding friction of {LOW_FRICTION} or less: boxes stacked "
        "on such ones became NaN in mujoco-warp (mujoco_warp#1517); 0.01 is fine"
    ]


def start_warp(kernel_cache: Path | None) -> None:
    """Start Warp with its compiled kernels in our folder, one for each version of Warp."""
    if kernel_cache is not None:
        wp.config.kernel_cache_dir = str(kernel_cache / wp.config.version)
    wp.init()


def _make_rows(model: Any, lane: Lane, num_envs: int, ctrl_steps: int) -> HostRows:
    """Allocate the host's rows of all groups."""
    f32, i32 = torch.float32, torch.int32
    return HostRows(
        lane.host_rows((num_envs, ctrl_steps, model.nu), f32),
        lane.host_rows((num_envs, 1 + model.nq + model.nv), f32),
        lane.host_rows((num_envs, model.nsensordata), f32),
        lane.host_rows((num_envs,), i32),
        lane.host_rows((num_envs, 2), i32),
    )
