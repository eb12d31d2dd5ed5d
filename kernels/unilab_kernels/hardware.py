"""What keeps a robot from acting and seeing at once and exactly, as lines of source text.

Encoder bias, late actions and late observations. Each is drawn for an env (`per_episode` False) or
anew for every episode, and kept in carried fields; where a task has none, its kernel has no trace.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from .bind import FlatArray
from .operands import Row
from .spec import CarriedField, Delay, EncoderBias, Hardware, ObservationSlice


class Columns(NamedTuple):
    """A run of columns of an observation row, and where its copy starts in a history slot."""

    start: int
    stop: int
    offset: int


def carried_fields(hardware: Hardware, num_actions: int) -> dict[str, CarriedField]:
    """Return the fields that the hardware carries; what a reset draws is not reset besides.

    Args:
      hardware: of the task.
      num_actions: A.
    """
    fields = {}
    if hardware.encoder_bias is not None:
        fields["encoder_bias"] = CarriedField(num_actions, reset=None)
    if hardware.action_delay is not None:
        fields["action_delay"] = CarriedField(1, scalar=True, reset=None)
        older = num_older_actions(hardware)
        if older:
            fields["older_actions"] = CarriedField(older * num_actions)
    if hardware.observation_delay is not None:
        fields["observation_delay"] = CarriedField(1, scalar=True, reset=None)
    return fields


def num_older_actions(hardware: Hardware) -> int:
    """Return how many actions beyond `action` and `prev_action` can still be on their way."""
    assert hardware.action_delay is not None
    return max(0, -(-hardware.action_delay.high // hardware.substeps) - 1)


def hardware_lines(
    hardware: Hardware,
    layout: Sequence[ObservationSlice],
    params: FlatArray,
    slices: dict[str, slice],
    carried: dict[str, CarriedField],
) -> tuple[list[str], list[str], list[str]]:
    """Return what draws biases and delays, what fills the history, and what shows it late.

    Args:
      hardware: of the task.
      layout: of the actor's observation.
      params: run-time numbers; the ends of the ranges are added.
      slices, carried: the carried fields; the history is added.
    """
    draws: list[str] = []
    if (bias := hardware.encoder_bias) is not None:
        low, high = (params.add("encoder_bias", values) for values in (bias.low, bias.high))
        assert isinstance(low, Row)
        assert isinstance(high, Row)
        draws += draw_bias(bias, slices["encoder_bias"], low, high)
    for name in ("action_delay", "observation_delay"):
        if (delay := getattr(hardware, name)) is not None:
            numbers = (params.add(name, v) for v in (delay.low, delay.high - delay.low + 1))
            first, count = (ast.unparse(number.load()) for number in numbers)
            draws += draw_delay(name, delay, slices[name].start, first, count)
    if (late := hardware.observation_delay) is None:
        return draws, [], []
    parts, slots = late_columns(layout, late.terms), late.high + 1
    start, size = max(s.stop for s in slices.values()), sum(p.stop - p.start for p in parts)
    history = slice(start, start + slots * size)
    slices["observation_history"] = history
    carried["observation_history"] = CarriedField(slots * size, reset=None)
    shows = show_late(slices["observation_delay"].start, history, slots, parts)
    return draws, fill_history(history, slots, parts), shows


def draw_bias(bias: EncoderBias, field: slice, low: Row, high: Row) -> list[str]:
    """Draw the offset of each encoder."""
    width = f"({_item(high, 'j')} - {_item(low, 'j')})"
    return [
        f"hardware_key = {_key('encoder_bias', bias.per_episode)}",
        f"for j in range({field.stop - field.start}):",
        f"    fields_io[i, {field.start} + j] = {_item(low, 'j')} + {width} * "
        "first01(bits64(hardware_key, j))",
    ]


def draw_delay(name: str, delay: Delay, column: int, low: str, count: str) -> list[str]:
    """Draw a whole number of steps, one of `count` from `low` on."""
    return [
        f"hardware_key = {_key(name, delay.per_episode)}",
        f"fields_io[i, {column}] = {low} + f32(i64({count} * first01(bits64(hardware_key, 0))))",
    ]


def measure(bias: int, true: Row, measured: Row) -> list[str]:
    """Add the bias (a column of the carried fields) to the joint positions."""
    return [
        "# joint positions as the encoders give them, for the actor",
        f"for j in range({true.size}):",
        f"    {_item(measured, 'j')} = {_item(true, 'j')} + fields_io[i, {bias} + j]",
    ]


def remember_actions(num_actions: int, older: slice | None, prev_action: int) -> list[str]:
    """Make room for the newest action among those that are on their way."""
    if older is None:
        return []
    return [
        f"for j in range({older.stop - 1}, {older.start + num_actions - 1}, -1):",
        f"    fields_io[i, j] = fields_io[i, j - {num_actions}]",
        f"for j in range({num_actions}):",
        f"    fields_io[i, {older.start} + j] = fields_io[i, {prev_action} + j]",
    ]


def late_ctrl(
    num_actions: int, delay: int, action: int, prev_action: int, older: slice | None, ctrl: int
) -> list[str]:
    """Map to ctrl, for each substep, the action that has arrived by then.

    At substep t of the T of a step, the newest action that is `delay` substeps old or older was
    given ceil((delay - t) / T) control steps ago. Before the first one of an episode it is 0.
    """
    rest = []
    if older is not None:
        rest = [
            "    if age > 1:",
            f"        column = {older.start} + (age - 2) * {num_actions}",
        ]
    return [
        "num_substeps = ctrl_out.shape[1]",
        f"delay = i64(fields_io[i, {delay}])",
        "for t in range(num_substeps):",
        "    age = (delay - t + num_substeps - 1) // num_substeps if delay > t else 0",
        f"    column = {action} if age == 0 else {prev_action}",
        *rest,
        f"    for j in range({num_actions}):",
        "        late = np.float64(fields_io[i, column + j])",
        "        ctrl_out[i, t, j] = ctrl_offset_in[j] + ctrl_scale_in[j] * late",
        f"for j in range({num_actions}):  # what acts at the end of the step",
        f"    fields_io[i, {ctrl} + j] = f32(ctrl_out[i, num_substeps - 1, j])",
    ]


def show_late(delay: int, history: slice, slots: int, parts: Sequence[Columns]) -> list[str]:
    """Put this step's observation in its slot, and show the one of `delay` steps ago."""
    size = (history.stop - history.start) // slots
    lines = [
        "# observations.actor: some come late",
        f"newest = {history.start} + step % {slots} * {size}",
        f"then = step + {slots} - i64(fields_io[i, {delay}])",
        f"shown = {history.start} + then % {slots} * {size}",
    ]
    for part in parts:
        lines += [
            f"for j in range({part.stop - part.start}):",
            f"    fields_io[i, newest + {part.offset} + j] = obs_out[i, {part.start} + j]",
            f"    obs_out[i, {part.start} + j] = fields_io[i, shown + {part.offset} + j]",
        ]
    return lines


def fill_history(history: slice, slots: int, parts: Sequence[Columns]) -> list[str]:
    """Make the first observation of an episode that of all the steps before it."""
    size = (history.stop - history.start) // slots
    lines = [f"for slot in range({slots}):"]
    for part in parts:
        lines += [
            f"    for j in range({part.stop - part.start}):",
            f"        fields_io[i, {history.start + part.offset} + slot * {size} + j] = "
            f"obs_out[i, {part.start} + j]",
        ]
    return lines


def late_columns(layout: Sequence[ObservationSlice], terms: Sequence[str]) -> list[Columns]:
    """Return where the late terms are in the observation, and where each is in a slot."""
    parts, offset = [], 0
    for part in layout:
        if part.name in terms:
            parts.append(Columns(part.start, part.stop, offset))
            offset += part.stop - part.start
    return parts


def _key(name: str, per_episode: bool) -> str:
    """The random key of a draw: of the episode, or of the env alone (as in an episode 0)."""
    env = "env_key" if per_episode else "fold(fold(fold(seed_in[0], u64(i)), u64(0)), u64(0))"
    return f"fold({env}, u64({zlib.crc32(f'hardware/{name}'.encode())}))"


def _item(row: Row, position: str) -> str:
    return f"{row.array}[{row.start} + {position}]"
