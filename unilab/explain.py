"""`unilab explain`: what a task is made of, as text."""

from __future__ import annotations

from collections.abc import Mapping

from unilab.config import LoadedConfig, TermConfig, all_keys
from unilab.config.base import to_plain
from unilab.config.layers import leaves
from unilab.config.randomization import RandomizationConfig
from unilab.physics.model import format_actuator_table
from unilab.runtime.threads import make_plan
from unilab.tasks.base import BuiltTask, build_task
from unilab_kernels import terms
from unilab_kernels.spec import ObservationSlice


def explain(loaded: LoadedConfig, kernel: bool) -> str:
    """Return the resolved config with origins, the layout of observations, and the terms.

    Args:
      loaded: the config.
      kernel: return the source of the fused kernel instead.

    Raises:
      ConfigError: the model, a term or a parameter is not right.
    """
    built = build_task(loaded.config)
    if kernel:
        return f"# {built.kernel.write()}\n{built.kernel.source}"
    sections = [
        _head(built),
        _config(loaded),
        _observations("actor", built.kernel.actor_layout),
        _observations("critic", built.kernel.critic_layout),
        _terms("rewards (times the control dt)", ("reward",), built.config.rewards),
        _terms("terminations", ("termination",), built.config.terminations),
        _terms("commands", ("command",), built.config.commands),
        _terms("events", ("reset", "interval"), built.config.events),
        _randomization(built.config.randomization),
        "actuators\n" + _indent(format_actuator_table(built.robot.actuator_table())),
    ]
    return "\n\n".join(sections)


def _head(built: BuiltTask) -> str:
    config, model = built.config, built.robot.model
    plan = make_plan(config.runtime, config.physics.num_envs)
    return "\n".join(
        [
            f"task {config.task}: {config.description}",
            f"  robot     {built.robot.path} (nq {model.nq}, nv {model.nv}, nu {model.nu})",
            f"  control   {1.0 / built.control_dt:g} Hz, {config.physics.substeps} substeps of "
            f"{config.physics.timestep_s:g} s; episodes of {built.max_steps} steps",
            f"  threads   {plan.describe()}",
        ]
    )


def _config(loaded: LoadedConfig) -> str:
    off = loaded.config.randomization.names_off()
    meaning = {key.dotted: key.description for key in all_keys()}
    rows = [
        (key, _show(value), loaded.origins.get(key, ""), meaning.get(key, ""))
        for key, value in leaves(to_plain(loaded.config))
        if not key.startswith(tuple(f"randomization.{name}." for name in off))
    ]
    widths = [min(44, max(len(row[i]) for row in rows)) for i in range(3)]
    lines = ["config (key, value, where it comes from, what it does)"]
    for *cells, text in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join(["", *padded, text]).rstrip())
    return "\n".join(lines)


def _show(value: object) -> str:
    return "null" if value is None else str(value)


def _observations(group: str, layout: tuple[ObservationSlice, ...]) -> str:
    lines = [f"observations.{group}: {layout[-1].stop} numbers"]
    for part in layout:
        term = terms.find("observation", part.name)
        summary = term.summary if term is not None else ""
        noise = f"noise +-{part.noise:g}" if part.noise else ""
        scale = f"scale {part.scale:g}" if part.scale != 1.0 else ""
        extra = ", ".join(text for text in (noise, scale) if text)
        lines.append(f"  [{part.start:3d}:{part.stop:3d}]  {part.name:18s} {extra:22s} {summary}")
    return "\n".join(lines)


def _terms(title: str, stages: tuple[str, ...], chosen: Mapping[str, TermConfig]) -> str:
    lines = [title]
    for name, values in chosen.items():
        found = [term for stage in stages if (term := terms.find(stage, name)) is not None]
        parameters = ", ".join(f"{k}={_show(v)}" for k, v in values.items() if k != "weight")
        weight = f"{values['weight']:+8.4g}  " if "weight" in values else ""
        summary = found[0].summary if found else ""
        lines.append(f"  {weight}{name:18s} {parameters:32s} {summary}".rstrip())
    return "\n".join(lines if len(lines) > 1 else [f"{title}: none"])


def _randomization(block: RandomizationConfig) -> str:
    startup, reset = block.num_variants
    lines = [f"randomization: models of {startup} startup draws x {reset} reset draws"]
    for name, entry in block.entries():
        values = to_plain(entry)
        chosen = ", ".join(
            f"{k}={_show(v)}" for k, v in values.items() if k != "mode" and v is not None
        )
        lines.append(f"  {name:18s} {entry.mode:8s} {chosen}")
    head = lines if len(lines) > 1 else ["randomization: none"]
    return "\n".join([*head, f"  off: {', '.join(block.names_off()) or 'none'}"])


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
