"""The parts of a kernel that are the same for every task, as lines of source text."""

from __future__ import annotations

from collections.abc import Mapping

from .arrays import ARRAYS
from .hardware import late_ctrl, remember_actions
from .operands import Binding, Row
from .spec import (
    BAD_ACTION,
    BAD_TERM,
    BLOCK,
    DIVERGED,
    DIVERGED_LIMIT,
    CarriedField,
    KernelSpec,
    StateField,
)

FLOAT32_LIMIT = "3.4e38"  # a finite f64 beyond it has no finite f32


def indent(lines: list[str], depth: int = 1) -> list[str]:
    """Indent lines of source text."""
    return ["    " * depth + line for line in lines]


def function_text(
    name: str,
    body: list[str],
    *,
    head: str = "first_block, last_block, num_envs",
    parallel: bool = False,
) -> str:
    """Return the text of a kernel: `head` and all arrays are its arguments."""
    options = "**_OPTIONS, parallel=True" if parallel else "**_OPTIONS"
    arrays = list(ARRAYS)
    rows = [", ".join(arrays[k : k + 4]) for k in range(0, len(arrays), 4)]
    signature = ",\n    ".join([head, *rows])
    return "\n".join([f"@njit({options})", f"def {name}(\n    {signature},\n):", *indent(body)])


def apply_action(num_actions: int, slices: Mapping[str, slice]) -> list[str]:
    """Clip and check the policy's action, and map it to ctrl; `slices`: of the carried fields."""
    action, prev_action, ctrl = (slices[n].start for n in ("action", "prev_action", "ctrl"))
    older = slices.get("older_actions")
    head = f"""
limit = action_clip_in[0]
for i in range(first_block * {BLOCK}, min(last_block * {BLOCK}, num_envs)):
    zeros = f32(0.0)  # NaN as soon as one of them is not finite
    for j in range({num_actions}):
        zeros += policy_action_in[i, j] * f32(0.0)
    finite = zeros == f32(0.0)
    failure_io[i] = 0 if finite else {BAD_ACTION}"""
    take_over = f"""
    for j in range({num_actions}):
        fields_io[i, {prev_action} + j] = fields_io[i, {action} + j]
        a = min(max(policy_action_in[i, j], -limit), limit)
        fields_io[i, {action} + j] = a if finite else f32(0.0)"""
    at_once = f"""
    for j in range({num_actions}):  # loops of one kind of access each: they become vector code
        target = ctrl_offset_in[j] + ctrl_scale_in[j] * np.float64(fields_io[i, {action} + j])
        ctrl_out[i, 0, j] = target
        fields_io[i, {ctrl} + j] = f32(target)
    for t in range(1, ctrl_out.shape[1]):
        for j in range({num_actions}):
            ctrl_out[i, t, j] = ctrl_out[i, 0, j]"""
    lines = [part.strip("\n").split("\n") for part in (head, take_over, at_once)]
    if "action_delay" in slices:
        delay = slices["action_delay"].start
        lines[2] = indent(late_ctrl(num_actions, delay, action, prev_action, older, ctrl))
    remember = indent(remember_actions(num_actions, older, prev_action))
    return [*lines[0], *remember, *lines[1], *lines[2]]


def env_key(step: str) -> list[str]:
    """The random key of this env, episode and step."""
    return [f"env_key = fold(fold(fold(seed_in[0], u64(i)), u64(episode_io[i])), u64({step}))"]


def load_fields(used: Mapping[str, StateField], targets: Mapping[str, Binding]) -> list[str]:
    """Copy the fields of the physics; those that take a loop of the same length share it."""
    loops: dict[str, list[str]] = {}
    lines: list[str] = []
    for name, state in used.items():
        head, *rest = _load_field(name, state, targets[name])
        if head.startswith("for "):
            loops.setdefault(head, []).extend(rest)
        else:
            lines += [head, *rest]
    return [*(line for head, body in loops.items() for line in (head, *body)), *lines]


def copy_columns(
    where: str, array: str, start: int, stop: int, source: str, first: int
) -> list[str]:
    """Fill columns [start, stop) of a row with those of another array from `first` on."""
    return [
        f"# {where}: as in {source}",
        f"for j{start} in range({stop - start}):",
        f"    {array}[i, {start} + j{start}] = {source}[i, {first} + j{start}]",
    ]


def _load_field(name: str, state: StateField, target: Binding) -> list[str]:
    """Copy one field of the physics into scratch, or into a local variable, as f32."""
    if not isinstance(target, Row):
        return [*_reduce(state, state.columns[0]), f"v_{name} = f32({_value(state)})"]
    columns = state.columns
    if columns == tuple(range(columns[0], columns[0] + len(columns))) and len(columns) > 2:
        return [
            f"for j in range({len(columns)}):",
            *indent(_reduce(state, f"{columns[0]} + j")),
            f"    scratch[{target.start} + j] = f32({_value(state)})",
        ]
    lines: list[str] = []
    for k, column in enumerate(columns):
        lines += _reduce(state, column)
        lines.append(f"scratch[{target.start + k}] = f32({_value(state)})")
    return lines


def _reduce(state: StateField, column: int | str) -> list[str]:
    """Leave the value over the substeps in ``peak``."""
    array = "state_in" if state.source == "state" else "sensor_in"
    if state.source == "state" or state.reduce == "last":
        return [f"peak = {array}[i, last, {column}]"]
    return [
        f"peak = {array}[i, 0, {column}]",
        "for t in range(1, last + 1):",
        f"    peak = max(peak, {array}[i, t, {column}])",
    ]


def _value(state: StateField) -> str:
    is_any = state.source == "sensor" and state.reduce == "any"
    return "1.0 if peak > 0.0 else 0.0" if is_any else "peak"


def check_state(spec: KernelSpec, used: Mapping[str, StateField]) -> list[str]:
    """Flag an env whose state is not finite or is far too large."""
    assert spec.qvel_column == spec.qpos_column + spec.nq
    first, count = spec.qpos_column, spec.nq + spec.nv
    state_columns = {c for f in used.values() if f.source == "state" for c in f.columns}
    state_columns -= set(range(first, first + count))
    last_columns: set[int] = set()
    all_columns: set[int] = set()
    for field in used.values():
        if field.source == "sensor":
            (last_columns if field.reduce == "last" else all_columns).update(field.columns)
    lines = [
        "finite = True",
        *_below("state_in[i, last, {}]", first, first + count, DIVERGED_LIMIT),
    ]
    for start, stop in _ranges(state_columns):
        lines += _below("state_in[i, last, {}]", start, stop, FLOAT32_LIMIT)
    for start, stop in _ranges(last_columns - all_columns):
        lines += _below("sensor_in[i, last, {}]", start, stop, FLOAT32_LIMIT)
    if all_columns:
        lines.append("for t in range(last + 1):")
        for start, stop in _ranges(all_columns):
            lines += indent(_below("sensor_in[i, t, {}]", start, stop, FLOAT32_LIMIT))
    return [
        *lines,
        "failure = failure_io[i]",
        "if failure == 0 and not finite:",
        f"    failure = {DIVERGED}",
        f"    failure_io[i] = {DIVERGED}",
    ]


def _below(item: str, start: int, stop: int, limit: float | str) -> list[str]:
    return [
        f"for j in range({start}, {stop}):",
        f"    finite = finite & (abs({item.format('j')}) < {limit})",
    ]


def _ranges(columns: set[int]) -> list[tuple[int, int]]:
    """Return the columns as (start, stop) of runs without a gap."""
    runs: list[tuple[int, int]] = []
    for column in sorted(columns):
        if runs and runs[-1][1] == column:
            runs[-1] = (runs[-1][0], column + 1)
        else:
            runs.append((column, column + 1))
    return runs


def copy_final(num_obs: int, num_critic_obs: int) -> list[str]:
    """Keep the observations of the state in which the episode ended."""
    return [
        f"for j in range({num_obs}):",
        "    final_obs_out[i, j] = obs_out[i, j]",
        f"for j in range({num_critic_obs}):",
        "    final_critic_obs_out[i, j] = critic_obs_out[i, j]",
    ]


def clear_push(nv: int) -> list[str]:
    """Forget what the last step added to qvel: done where it did, which is in few rows."""
    return [f"for j in range({nv}):", "    push_out[i, j] = 0.0"]


def failed_row(first_failure: int, copy: list[str]) -> list[str]:
    """A failed env: reward 0, terminated, the last finite observation, no statistics."""
    return [
        "reward_out[i] = 0.0",
        "terminated_out[i] = 1",
        "truncated_out[i] = 0",
        *copy,
        f"log[{first_failure} + failure - 1] += 1.0",
    ]


def check_terms(num_obs: int, num_critic_obs: int, failed: list[str]) -> list[str]:
    """A finite state must give finite numbers: else a term is at fault."""
    return [
        "finite = abs(reward) < f32(3.4e38)",
        *_check_observations(num_obs, num_critic_obs),
        "if not finite:",
        f"    failure = {BAD_TERM}",
        f"    failure_io[i] = {BAD_TERM}",
        *indent(failed),
        "    continue",
    ]


def check_first_observations(num_obs: int, num_critic_obs: int) -> list[str]:
    """The same for the first observations of an episode: the caller looks at the flag."""
    return [
        "finite = True",
        *_check_observations(num_obs, num_critic_obs),
        f"failure_io[i] = 0 if finite else {BAD_TERM}",
    ]


def _check_observations(num_obs: int, num_critic_obs: int) -> list[str]:
    return [
        f"for j in range({num_obs}):",
        "    finite = finite & (abs(obs_out[i, j]) < f32(3.4e38))",
        f"for j in range({num_critic_obs}):",
        "    finite = finite & (abs(critic_obs_out[i, j]) < f32(3.4e38))",
    ]


def reset_fields(carried: Mapping[str, CarriedField], slices: Mapping[str, slice]) -> list[str]:
    """Set the carried fields of a new episode; ctrl to what action 0 asks for."""
    lines: list[str] = []
    for name, part in slices.items():
        loop = f"for j in range({part.start}, {part.stop}):"
        reset = carried[name].reset
        if name == "ctrl":
            lines += [loop, f"    fields_io[i, j] = f32(ctrl_offset_in[j - {part.start}])"]
        elif reset is not None:
            lines += [loop, f"    fields_io[i, j] = f32({reset!r})"]
    return lines


def add_noise(
    array: str, start: int, stop: int, *, stream: int, width: str, factor: str
) -> list[str]:
    """Uniform noise in +-width (in the term's unit), then the scale; two numbers a draw."""
    num_pairs, odd = divmod(stop - start, 2)

    def add(column: str, half: str, n: str) -> str:
        wiggle = f"{width} * (f32(2.0) * {half}(bits64(noise_key, {n})) - f32(1.0))"
        return f"{array}[i, {column}] = {factor} * ({array}[i, {column}] + {wiggle})"

    lines = [f"noise_key = fold(env_key, u64({stream}))"]
    if num_pairs:
        lines += [
            f"for j in range({num_pairs}):",
            f"    {add(f'{start} + 2 * j', 'first01', 'j')}",
            f"    {add(f'{start + 1} + 2 * j', 'second01', 'j')}",
        ]
    if odd:
        lines.append(add(f"{stop - 1}", "first01", f"{num_pairs}"))
    return lines


def close_episode(column: Mapping[str, int], num_ends: int, copy: list[str]) -> list[str]:
    """The statistics of an episode that ended."""
    first_end = column["timeouts"] + 1 + sum(name.startswith("reward/") for name in column)
    return [
        *copy,
        f"log[{column['episodes']}] += 1.0",
        f"log[{column['return_sum']}] += return_io[i]",
        f"log[{column['length_sum']}] += step - start_step_io[i]",
        f"log[{column['timeouts']}] += 1.0 if truncated else 0.0",
        *[f"log[{first_end + k}] += 1.0 if ends_{k} else 0.0" for k in range(num_ends)],
    ]
