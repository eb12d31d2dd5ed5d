"""What differs from env to env and from episode to episode: physical properties and hardware.

One block for every backend. An entry is off until one of its ranges is given. Every value is drawn
from the stored nominal of the model, never from an earlier draw. Pushes are in `events`, noise in
the observation terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator

from unilab.config.base import Section

LARGEST_DELAY = 1000  # steps; more is a mistake, and its history would fill the memory
MOST_VARIANTS = 65536
AUTO_ONE_MODE, AUTO_EACH_MODE = 64, 8  # variants


def _ordered(value: tuple[float, ...]) -> tuple[float, ...]:
    if len(value) != 2 or value[0] > value[1]:
        raise ValueError(f"got {list(value)}; valid: [low, high] with low <= high")
    return value


def _above_zero(value: tuple[float, ...]) -> tuple[float, ...]:
    if not value[0] > 0:
        raise ValueError(f"got {list(value)}; valid: [low, high] with low above 0")
    return value


def _not_below_zero(value: tuple[float, ...]) -> tuple[float, ...]:
    if value[0] < 0:
        raise ValueError(f"got {list(value)}; valid: [low, high] with low of 0 or more")
    return value


Interval = Annotated[tuple[float, ...], Strict(False), AfterValidator(_ordered)]
Factor = Annotated[Interval, AfterValidator(_above_zero)]
Positive = Annotated[Interval, AfterValidator(_not_below_zero)]
_Count = Annotated[int, Field(ge=0, le=LARGEST_DELAY)]
Counts = Annotated[tuple[_Count, ...], Strict(False), AfterValidator(_ordered)]
Patterns = Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
Mode = Literal["startup", "reset"]
Distribution = Literal["uniform", "log_uniform"]

_MODE = "startup = an env keeps its draw for the whole run; reset = a new draw for every episode."


def _mode() -> Mode:
    return Field(default="startup", description=_MODE)


def _select(what: str) -> tuple[str, ...]:
    text = f"Names or shell patterns of the {what}."
    return Field(default=("*",), description=text)


def _range(text: str) -> Any:
    return Field(default=None, description=f"{text} [low, high]; null = off.")


def _distribution() -> Distribution:
    text = "Distribution of factors and absolute values; what is added is uniform."
    return Field(default="uniform", description=text)


def _together() -> bool:
    text = "Draw once for all that are selected, in place of once each."
    return Field(default=False, description=text)


class Entry(Section):
    """One thing that is drawn.

    Attributes:
      RANGES: its keys that hold a range; it is on where one of them is set.
    """

    RANGES: ClassVar[tuple[str, ...]] = ("scale",)

    mode: Mode = _mode()

    @property
    def is_on(self) -> bool:
        """True where something is drawn."""
        return any(getattr(self, name) is not None for name in self.RANGES)

    @field_validator("mode", mode="before")
    @classmethod
    def _refuse_interval(cls, value: object) -> object:
        if value == "interval":
            raise ValueError(
                "interval is not possible here, no backend changes this within an episode; valid: "
                "startup | reset. At intervals an env can be pushed: events.push"
            )
        return value

    @model_validator(mode="after")
    def _check_is_complete(self) -> Self:
        changed = [k for k in type(self).model_fields if getattr(self, k) != self._default(k)]
        if changed and not self.is_on:
            raise ValueError(
                f"{changed[0]} is set, but nothing is drawn; set one of {', '.join(self.RANGES)}, "
                f"or take {changed[0]} out"
            )
        return self

    @classmethod
    def _default(cls, name: str) -> object:
        return cls.model_fields[name].get_default()


class ModelEntry(Entry):
    """An entry that changes the physical model; it takes one variant of it per draw."""


class BodyMass(ModelEntry):
    """Mass of bodies; the inertia scales along."""

    RANGES: ClassVar[tuple[str, ...]] = ("scale", "add_kg")

    bodies: Patterns = _select("bodies; those without mass are left out")
    scale: Factor | None = _range("Factor on the mass.")
    add_kg: Interval | None = _range("Added to the mass, kg, after the factor.")
    scale_inertia: bool = Field(
        default=True, description="Scale the inertia by the same ratio as the mass."
    )
    distribution: Distribution = _distribution()
    together: bool = _together()


class BodyCom(ModelEntry):
    """Centre of mass of bodies."""

    RANGES: ClassVar[tuple[str, ...]] = ("add_x_m", "add_y_m", "add_z_m")

    bodies: Patterns = _select("bodies; those without mass are left out")
    add_x_m: Interval | None = _range("Shift along x of the body's frame, m.")
    add_y_m: Interval | None = _range("Shift along y of the body's frame, m.")
    add_z_m: Interval | None = _range("Shift along z of the body's frame, m.")
    together: bool = _together()


class GeomFriction(ModelEntry):
    """Friction of geoms. Of two that touch the higher priority counts, else the larger value."""

    RANGES: ClassVar[tuple[str, ...]] = ("slide", "spin_m", "roll_m", "scale")

    geoms: Patterns = _select("geoms; those that never collide are left out")
    slide: Positive | None = _range("Sliding friction, a value in place of the nominal.")
    spin_m: Positive | None = _range("Torsional friction, m, in place of the nominal.")
    roll_m: Positive | None = _range("Rolling friction, m, in place of the nominal.")
    scale: Factor | None = _range("One factor on all three.")
    distribution: Distribution = _distribution()
    together: bool = _together()

    @model_validator(mode="after")
    def _check_log(self) -> Self:
        for name in ("slide", "spin_m", "roll_m"):
            value = getattr(self, name)
            if self.distribution == "log_uniform" and value is not None and not value[0] > 0:
                raise ValueError(f"{name}={list(value)}: log_uniform needs a low above 0")
        return self


class ActuatorGains(ModelEntry):
    """Gains of position and velocity servos."""

    RANGES: ClassVar[tuple[str, ...]] = ("kp_scale", "kd_scale")

    actuators: Patterns = _select("actuators")
    kp_scale: Factor | None = _range("Factor on the position gain.")
    kd_scale: Factor | None = _range("Factor on the velocity gain.")
    distribution: Distribution = _distribution()
    together: bool = _together()


class JointArmature(ModelEntry):
    """Rotor inertia seen at the joint."""

    RANGES: ClassVar[tuple[str, ...]] = ("scale", "add_kgm2")

    joints: Patterns = _select("hinge and slide joints")
    scale: Factor | None = _range("Factor on the armature.")
    add_kgm2: Interval | None = _range("Added to the armature, kg m^2 (kg for a slide).")
    distribution: Distribution = _distribution()
    together: bool = _together()


class JointFriction(ModelEntry):
    """Dry friction of joints (frictionloss)."""

    RANGES: ClassVar[tuple[str, ...]] = ("scale", "add_nm")

    joints: Patterns = _select("hinge and slide joints")
    scale: Factor | None = _range("Factor on the friction.")
    add_nm: Interval | None = _range("Added to the friction, N m (N for a slide).")
    distribution: Distribution = _distribution()
    together: bool = _together()


class JointDamping(ModelEntry):
    """Viscous friction of joints."""

    RANGES: ClassVar[tuple[str, ...]] = ("scale", "add_nms")

    joints: Patterns = _select("hinge and slide joints")
    scale: Factor | None = _range("Factor on the damping.")
    add_nms: Interval | None = _range("Added to the damping, N m s/rad (N s/m for a slide).")
    distribution: Distribution = _distribution()
    together: bool = _together()


class Gravity(ModelEntry):
    """Strength and direction of gravity."""

    RANGES: ClassVar[tuple[str, ...]] = ("scale", "add_ms2")

    scale: Factor | None = _range("Factor on gravity.")
    add_ms2: Interval | None = _range("Added along each axis of the world, m/s^2.")


class ActuatorStrength(ModelEntry):
    """The most force an actuator gives: its forcerange and its joint's actuatorfrcrange."""

    actuators: Patterns = _select("actuators; each needs a limit")
    scale: Factor | None = _range("Factor on the limits.")
    distribution: Distribution = _distribution()
    together: bool = _together()


class EncoderBias(Entry):
    """Offset of the joint positions that the policy sees; the critic sees the true ones."""

    RANGES: ClassVar[tuple[str, ...]] = ("add_rad",)

    joints: Patterns = _select("actuated joints")
    add_rad: Interval | None = _range("Added to each joint's position, rad (m for a slide).")


class ActionDelay(Entry):
    """Time between the policy's action and the actuators, drawn once for all of them."""

    RANGES: ClassVar[tuple[str, ...]] = ("substeps",)

    substeps: Counts | None = _range(
        "Whole number of integration steps by which every action comes late; may be more than a "
        "control step has."
    )


class ObservationDelay(Entry):
    """Time between a measurement and the policy's seeing it, drawn once for all terms selected."""

    RANGES: ClassVar[tuple[str, ...]] = ("steps",)

    terms: Patterns = _select("terms in observations.actor")
    steps: Counts | None = _range(
        "Whole number of control steps by which the policy sees them late, with the noise they had."
    )


class RandomizationConfig(Section):
    """All that is drawn anew for an env or for an episode."""

    startup_variants: Annotated[int, Field(ge=1, le=MOST_VARIANTS)] | Literal["auto"] = Field(
        default="auto",
        description="Models that the envs share for entries of the model with mode startup. auto = "
        "64, or 8 where mode reset is in use too: there are startup_variants * reset_variants.",
    )
    reset_variants: Annotated[int, Field(ge=1, le=MOST_VARIANTS)] | Literal["auto"] = Field(
        default="auto",
        description="Draws that episodes choose from, for entries of the model with mode reset. "
        "auto = 64, or 8 where mode startup is in use too.",
    )
    body_mass: BodyMass = Field(default=BodyMass(), description="Mass of bodies.")
    body_com: BodyCom = Field(default=BodyCom(), description="Centre of mass of bodies.")
    geom_friction: GeomFriction = Field(default=GeomFriction(), description="Friction of geoms.")
    actuator_gains: ActuatorGains = Field(default=ActuatorGains(), description="Servo gains.")
    joint_armature: JointArmature = Field(default=JointArmature(), description="Rotor inertia.")
    joint_friction: JointFriction = Field(default=JointFriction(), description="Dry friction.")
    joint_damping: JointDamping = Field(default=JointDamping(), description="Viscous friction.")
    gravity: Gravity = Field(default=Gravity(), description="Gravity.")
    actuator_strength: ActuatorStrength = Field(
        default=ActuatorStrength(), description="Force limits of actuators."
    )
    encoder_bias: EncoderBias = Field(default=EncoderBias(), description="Offset of encoders.")
    action_delay: ActionDelay = Field(default=ActionDelay(), description="Late actions.")
    observation_delay: ObservationDelay = Field(
        default=ObservationDelay(), description="Late observations."
    )

    @property
    def num_variants(self) -> tuple[int, int]:
        """Number of startup draws and of reset draws; 1 for a mode that no model entry has."""
        modes = {entry.mode for _, entry in self.model_entries()}
        auto = AUTO_EACH_MODE if len(modes) > 1 else AUTO_ONE_MODE
        counts = {"startup": self.startup_variants, "reset": self.reset_variants}
        startup, reset = (
            1 if mode not in modes else auto if count == "auto" else count
            for mode, count in counts.items()
        )
        return startup, reset

    def model_entries(self) -> Iterator[tuple[str, ModelEntry]]:
        """Yield the name and the entry of all that changes the model, in the order above."""
        for name in type(self).model_fields:
            entry = getattr(self, name)
            if isinstance(entry, ModelEntry) and entry.is_on:
                yield name, entry

    def names_off(self) -> list[str]:
        """Return the names of the entries that are off."""
        on = dict(self.entries())
        infos = type(self).model_fields
        return [n for n in infos if isinstance(getattr(self, n), Entry) and n not in on]

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield the name and the entry of all that is on."""
        for name in type(self).model_fields:
            entry = getattr(self, name)
            if isinstance(entry, Entry) and entry.is_on:
                yield name, entry
