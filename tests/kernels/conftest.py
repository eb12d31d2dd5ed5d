"""Kernels that several tests share: each is compiled once (and then read from the kernel cache)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.kernels.support import chosen, import_terms, library, make_spec
from tests.reference.step_reference import StepReference
from unilab_kernels import terms
from unilab_kernels.fuse import FusedKernel, assemble
from unilab_kernels.spec import KernelSpec

# A user's file: it shows derived fields and the spare fields, and has two terms that can go wrong.
PROBES = """
import math

from unilab_kernels.terms import observation, reward


@observation(size=1)
def spare_inverse(spare, out):
    out[0] = 1.0 / spare


@observation(size=1)
def clock_now(clock, out):
    out[0] = clock


@reward
def root_of_spare(spare):
    return math.sqrt(spare)
"""
PROBE_OF_ROW = """

@observation(size="{name}")
def show_{name}({name}, out):
    for j in range(len(out)):
        out[j] = {name}[j]
"""
PROBE_OF_NUMBER = """

@observation(size=1)
def show_{name}({name}, out):
    out[0] = {name}
"""


def probe_of(name: str) -> str:
    """The text of an observation that shows a derived field."""
    is_number = terms.find("derived", name).size == 0
    return (PROBE_OF_NUMBER if is_number else PROBE_OF_ROW).format(name=name)


class Case(NamedTuple):
    """An assembled and compiled task, with its oracle."""

    spec: KernelSpec
    kernel: FusedKernel
    module: Any
    reference: StepReference


def make_case(spec: KernelSpec, oracles: dict[Any, Any] | None = None) -> Case:
    kernel = assemble(spec)
    return Case(spec, kernel, kernel.load(), StepReference(spec, seed=7, oracles=oracles))


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """All terms of the library in one kernel, and a user's probes."""
    text = PROBES + "".join(probe_of(name) for name in library("derived"))
    import_terms(tmp_path_factory.mktemp("probes"), "unilab_test_probes", text)
    probes = {f"show_{name}": {} for name in library("derived")}
    actor = chosen("observation")
    for k, given in enumerate(actor.values()):  # noise, scale, both, none
        if k % 4 in (0, 2):
            given["noise"] = 0.1 + 0.01 * k
        if k % 4 in (1, 2):
            given["scale"] = 0.5 - 0.01 * k
    weights = np.random.default_rng(3).normal(0.0, 1.0, 99).tolist()
    rewards = {
        name: {**given, "weight": round(weights[k], 3) if k % 5 else 0.0}
        for k, (name, given) in enumerate(chosen("reward").items())
    }
    spec = make_spec(
        name="everything",
        actor=actor,
        critic={**chosen("observation"), **probes, "spare_inverse": {}, "clock_now": {}},
        rewards={**rewards, "root_of_spare": {"weight": 0.5}},
        terminations=chosen("termination"),
        commands=chosen("command"),
        events={**chosen("reset"), **chosen("interval")},
    )
    oracles = {
        ("observation", "spare_inverse"): lambda e: 1.0 / e.spare[:, None],
        ("observation", "clock_now"): lambda e: e.clock[:, None],
        ("reward", "root_of_spare"): lambda e: np.sqrt(e.spare),
    }
    for name in library("derived"):
        oracles["observation", f"show_{name}"] = lambda e, name=name: (
            getattr(e, name) if np.ndim(getattr(e, name)) == 2 else getattr(e, name)[:, None]
        )
    return make_case(spec, oracles)


@pytest.fixture(scope="session")
def small() -> Case:
    """A few terms: cheap to compile."""
    return make_case(make_spec(name="small", **SMALL))


SMALL: dict[str, Any] = {
    "actor": {"gravity": {"noise": 0.1}},
    "critic": {"base_height": {"scale": 2.0}},
    "rewards": {"alive": {"weight": 1.0}, "cart_centered": {"weight": 0.0, "std": 0.5}},
    "terminations": {"cart_out": {"limit_m": 1.0}},
    "events": {"reset_joints": {"pos_rad": 0.1}},
}


@pytest.fixture(autouse=True)
def quiet_numpy():
    """Oracles may divide by zero where the kernel is meant to notice it."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def forget_terms() -> Iterator[None]:
    """Terms that a test registers are gone after it."""
    known = dict(terms._REGISTRY)
    yield
    terms._REGISTRY.clear()
    terms._REGISTRY.update(known)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
