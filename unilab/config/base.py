"""What every config section is built on: strict frozen models and immutable mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

OVERRIDES_TEXT = (
    "Blocks of this config, laid over the task's file when this learner is chosen; what the "
    "command line sets wins over them. null removes a term."
)


class Section(BaseModel):
    """A block of the config: typed, frozen, and closed to keys it does not declare.

    Values keep their type: text is not turned into a number, nor true into 1. A whole number is
    accepted where a number is asked for. Infinity and NaN are refused everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change after construction. Equal to a plain dict of its items."""

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("the config is never changed after it is loaded")

    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = update = setdefault = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def freeze(value: Any) -> Any:
    """Return `value` with every mapping in it as a FrozenDict and every list as a tuple."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def to_plain(value: Any) -> Any:
    """Return a config value as dicts, lists and scalars, for YAML, JSON and comparison."""
    if isinstance(value, BaseModel):
        return {name: to_plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


# A list in YAML, a tuple in the model.
FloatTuple = Annotated[tuple[float, ...], Strict(False)]
PointTuple = Annotated[tuple[FloatTuple, ...], Strict(False)]
HiddenSizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Strict(False), Field(min_length=1)]

# One term's parameters, such as {weight: 2.0, std: 0.5}. The task checks the names.
TermValue = float | bool | FloatTuple
TermConfig = Annotated[dict[str, TermValue], AfterValidator(freeze)]
Terms = Annotated[dict[str, TermConfig], AfterValidator(freeze)]
Thresholds = Annotated[dict[str, float], AfterValidator(freeze)]
# Blocks of the config to be laid over the file; checked where they are laid.
Overlay = Annotated[dict[str, Any], AfterValidator(freeze)]

SizeOrAuto = Annotated[int, Field(ge=0)] | Literal["auto"]
CountOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]
BoolOrAuto = bool | Literal["auto"]

# Choices that several learners have.
NetworkKind = Annotated[
    Literal["mlp", "residual"],
    Field(
        description="mlp: a hidden layer for each width; residual: a pre-norm residual block for "
        "each (SimBa, Lee et al. 2025), all of one width."
    ),
]
PrecisionName = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    Field(
        description="Number type of the hidden layers. fp32 uses TF32 on a GPU; fp16 scales the "
        "loss; auto = bf16 on a GPU with large layers and batches, else fp32."
    ),
]
CompileMode = Annotated[
    Literal["off", "on"],
    Field(
        description="on: torch.compile makes code of the networks' passes, where that gives the "
        "same numbers and is not slower; a warning says where it is not used. Starting takes "
        "longer, up to minutes."
    ),
]


# How much wider a residual block is inside. Source: SimBa, Lee et al. 2025.
EXPANSION = 4


def hidden_layers(
    network: str, hidden: tuple[int, ...], expansion: int = EXPANSION
) -> tuple[int, ...]:
    """Return how many outputs each linear layer of a network has, but for the last.

    Args:
      network: mlp or residual.
      hidden: width of each hidden layer or block.
      expansion: how many times wider a residual block is inside.
    """
    if network == "mlp":
        return hidden
    return (hidden[0], *(size for width in hidden for size in (expansion * width, width)))


def check_widths(network: str, hidden: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError where a residual network is not of one width; `hidden` is by key."""
    for key, widths in hidden.items():
        if network == "residual" and len(set(widths)) > 1:
            raise ValueError(
                f"network=residual adds each block to the one before, but {key} is "
                f"{list(widths)}; valid: one width for all, such as [512, 512]"
            )
