"""Replay buffers side by side: packed rows, every field by itself, on the device or on the host.

Part of `benchmark_gpu_buffer.py`. A batch is drawn and gathered in each row: row numbers and n-step
rewards are part of the time. "Normalised" is the same with what follows in the learner: mean and
scale, conversion to float32, the place in its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

CAPACITY = 128  # steps of each env: 1,048,576 transitions of 8,192 envs, far beyond any cache
CONFIG_CAPACITY = 1024  # the default, that bytes of a transition are given for
EPISODE = 1000
ROWS = {
    "fields": "host: every field by itself, new memory each time",
    "fields_given": "host: every field by itself, into given memory",
    "fp32": "host: packed rows, float32",
    "bf16": "host: packed rows, bfloat16",
    "fp32_n3": "host: packed rows, float32, 3 steps",
    "bf16_n3": "host: packed rows, bfloat16, 3 steps",
    "fields_table": "host: every field by itself, normalised",
    "fp32_table": "host: packed rows, float32, normalised",
    "bf16_table": "host: packed rows, bfloat16, normalised",
    "append_fields": "append a step: every field by itself",
    "append_fp32": "append a step: packed rows, float32",
    "append_bf16": "append a step: packed rows, bfloat16",
    "device_fields": "device: every field by itself, index_select",
    "device_fp32": "device: packed rows, float32",
    "device_bf16": "device: packed rows, bfloat16",
    "pinned": "host, packed float32, batch moved: pinned",
    "pageable": "host, packed float32, batch moved: pageable",
    "device_learner": "an update from the device's rows, float32",
    "pinned_learner": "an update from the host's rows: pinned",
    "pageable_learner": "an update from the host's rows: pageable",
}


class PerField:
    """The usual layout (FastTD3): each field an array, next observations stored, int64 flags.

    Args:
      source: the rows of a control step; all slots are filled with them.
      device: where it lives.
    """

    def __init__(self, source: Any, device: Any) -> None:
        import numpy as np
        import torch

        step, envs = source.step, source.num_envs
        fields = (step.obs, step.critic_obs, step.action, step.reward, step.obs, step.critic_obs,
                  step.terminated.astype(np.int64), step.truncated.astype(np.int64))  # fmt: skip
        self.sources = [torch.from_numpy(field.reshape(envs, -1)) for field in fields]
        self.tables = [_empty(field, CAPACITY * envs, device) for field in self.sources]
        self.envs, self.device, self.slot = envs, device, 0
        for _ in range(CAPACITY):
            self.append()

    def append(self) -> None:
        """Write one control step."""
        start = self.slot % CAPACITY * self.envs
        for table, field in zip(self.tables, self.sources, strict=True):
            table[start : start + self.envs].copy_(field, non_blocking=True)
        self.slot += 1

    def sampler(self, batch: int, *, given: bool) -> Callable[[], Any]:
        """Return what draws a batch, into memory that is there already where `given`."""
        import torch

        outs = [table.new_empty(batch, table.shape[1]) for table in self.tables]
        generator = torch.Generator(self.device).manual_seed(0)

        def sample() -> Any:
            rows = torch.randint(
                CAPACITY * self.envs, (batch,), generator=generator, device=self.device
            )
            if given:
                for table, out in zip(self.tables, outs, strict=True):
                    torch.index_select(table, 0, rows, out=out)
                return outs
            return [table.index_select(0, rows) for table in self.tables]

        return sample

    @property
    def bytes_per_transition(self) -> float:
        """Bytes of all fields of a transition."""
        return sum(table.nbytes for table in self.tables) / (CAPACITY * self.envs)


def _empty(like: Any, rows: int, device: Any) -> Any:
    """Allocate a field's table as `Replay` does its rows, so that only the layout differs."""
    import numpy as np
    import torch

    if device.type == "cpu":
        return torch.from_numpy(np.zeros((rows, like.shape[1]), like.numpy().dtype))
    return torch.zeros(rows, like.shape[1], dtype=like.dtype, device=device)


def make_replay(source: Any, device: Any, batch: int, dtype: str, n_steps: int = 1) -> Any:
    """Return a full replay buffer."""
    from unilab.buffers.replay import Replay
    from unilab.buffers.replay_spec import ReplaySpec

    spec = ReplaySpec(
        source.num_envs, CAPACITY, *source.sizes, batch_size=batch, n_steps=n_steps, dtype=dtype,
        max_episode_steps=EPISODE,
    )  # fmt: skip
    replay = Replay(spec, device)
    replay.set_first(source.step.obs, source.step.critic_obs, 0, source.num_envs)
    for _ in range(CAPACITY):
        append(replay, source)
    return replay


def append(replay: Any, source: Any) -> None:
    """Append one control step and commit it."""
    import numpy as np

    step = source.step
    replay.append(
        step.start, step.stop, action=step.action, reward=step.reward,
        terminated=step.terminated.view(np.bool_), truncated=step.truncated.view(np.bool_),
        final_obs=step.final_obs, final_critic_obs=step.final_critic_obs, next_obs=step.obs,
        next_critic_obs=step.critic_obs,
    )  # fmt: skip
    replay.commit()


def measure(source: Any, batch: int, passes: int, config: Any) -> dict[str, Any]:
    """One process: draw batches of every kind in turns.

    Returns:
      "replay_ms": row -> median time of a batch, an append or an update; "replay_bytes": layout ->
      bytes of a transition; "h2d_bytes": row -> bytes moved to the device for an update.
    """
    import statistics

    import torch

    calls, sizes, moved = _host_rows(source, batch)
    if torch.cuda.is_available():
        for part, found in zip((calls, moved), _device_rows(source, batch, config), strict=True):
            part.update(found)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(passes + 2):  # the first two: first touch, first calls
        for name, call in calls.items():
            begin = perf_counter()
            call()
            if number >= 2:
                times[name].append(1e3 * (perf_counter() - begin))
    return {
        "replay_ms": {name: statistics.median(values) for name, values in times.items()},
        "replay_bytes": sizes,
        "h2d_bytes": moved,
    }


def _host_rows(
    source: Any, batch: int
) -> tuple[dict[str, Callable[[], Any]], dict[str, float], dict[str, int]]:
    import torch

    cpu = torch.device("cpu")
    fields = PerField(source, cpu)
    calls: dict[str, Callable[[], Any]] = {
        "fields": fields.sampler(batch, given=False),
        "fields_given": fields.sampler(batch, given=True),
    }
    sizes = {"fields": fields.bytes_per_transition}
    calls["fields_table"] = _into_table(source, batch, _as_batch(calls["fields"], batch))
    appends = {"append_fields": fields.append}
    for dtype in ("fp32", "bf16"):
        for n_steps, suffix in ((1, ""), (3, "_n3")):
            replay = make_replay(source, cpu, batch, dtype, n_steps)
            calls[dtype + suffix] = _sampler(replay, batch)
            sizes[dtype] = replace(replay.spec, capacity=CONFIG_CAPACITY).bytes_per_transition
            if n_steps == 1:
                calls[f"{dtype}_table"] = _into_table(source, batch, calls[dtype])
        appends[f"append_{dtype}"] = lambda replay=replay: append(replay, source)  # type: ignore
    return calls | appends, sizes, {}


def _as_batch(sample: Callable[[], Any], batch: int) -> Callable[[], Any]:
    """Return what draws a batch of fields as a learner takes it; flags stand for what they say."""
    import torch

    from unilab.buffers.batch import Batch

    weight = torch.ones(batch)

    def draw() -> Any:
        obs, critic_obs, action, reward, next_obs, next_critic_obs, terminated, _ = sample()
        discount = 0.99 * (terminated[:, 0] == 0)
        return Batch(obs, critic_obs, action, reward[:, 0], discount, next_obs, next_critic_obs,
                     weight)  # fmt: skip

    return draw


def _into_table(source: Any, batch: int, draw: Callable[[], Any]) -> Callable[[], None]:
    """Return what draws a batch and puts it, normalised, where `sac` and `td3` learn from."""
    import torch

    from unilab.learners.base import LearnerSpec
    from unilab.learners.normalize import RunningNormalizer
    from unilab.learners.update_table import UpdateTable

    cpu, (obs, critic_obs, actions) = torch.device("cpu"), source.sizes
    limit = torch.ones(actions)
    table = UpdateTable(LearnerSpec(*source.sizes), 1, batch, False, limit, cpu, torch.float32)
    normalizers = [RunningNormalizer(dim, enabled=True, device=cpu) for dim in (obs, critic_obs)]
    return lambda: table.fill(draw(), *normalizers)


def _sampler(replay: Any, batch: int) -> Callable[[], Any]:
    import torch

    generator = torch.Generator(replay.device).manual_seed(0)
    return lambda: replay.sample(batch, generator)


def _device_rows(
    source: Any, batch: int, config: Any
) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """Rows that need a CUDA device; each call ends when the device is done."""
    import torch

    device = torch.device("cuda")
    fields = PerField(source, device)
    host = make_replay(source, torch.device("cpu"), batch, "fp32")
    draws = {
        "device_fields": fields.sampler(batch, given=True),
        **{
            f"device_{dtype}": _sampler(make_replay(source, device, batch, dtype), batch)
            for dtype in ("fp32", "bf16")
        },
        "pinned": _moved(host, batch, device, pin=True),
        "pageable": _moved(host, batch, device, pin=False),
    }
    calls = {name: _waited(call) for name, call in draws.items()}
    batch_bytes = sum(part.nbytes for part in _sampler(host, batch)())
    moved = {"pinned": batch_bytes, "pageable": batch_bytes, "device_fp32": _step_bytes(source)}
    learner = _learner(source, batch, config, device)
    if learner is not None:
        for name, draw in (("device", "device_fp32"), ("pinned", "pinned"),
                           ("pageable", "pageable")):  # fmt: skip
            call = draws[draw]
            calls[f"{name}_learner"] = _waited(lambda call=call: learner.cycle(call()))
    return calls, moved


def _step_bytes(source: Any) -> int:
    """Bytes that a control step moves to a buffer on the device, however many updates follow."""
    step = source.step
    return int(step.obs.nbytes + step.critic_obs.nbytes + step.action.nbytes + 8 * source.num_envs)


def _waited(call: Callable[[], Any]) -> Callable[[], None]:
    import torch

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def _moved(replay: Any, batch: int, device: Any, *, pin: bool) -> Callable[[], Any]:
    """Return what draws from a buffer in host memory and moves the batch."""
    import torch

    draw = _sampler(replay, batch)
    like = draw()
    staging = [torch.empty(part.shape, pin_memory=True) for part in like] if pin else []
    targets = [torch.empty(part.shape, device=device) for part in like]

    def sample() -> Any:
        parts = draw()
        if pin:
            for stage, part in zip(staging, parts, strict=True):
                stage.copy_(part)
            parts = staging
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part, non_blocking=pin)
        return type(like)(*targets)

    return sample


def _learner(source: Any, batch: int, config: Any, device: Any) -> Any:
    """Return SAC with one update of `batch` rows a cycle; None where this version has none."""
    try:
        from unilab.learners.sac import SAC
    except ImportError:
        return None
    from unilab.learners.base import LearnerSpec

    update = {"batch_size": batch, "updates_per_step": 1, "actor_every": 1}
    settings = config.learners.sac.model_copy(update=update)
    return SAC(settings, LearnerSpec(*source.sizes), device, 0)
