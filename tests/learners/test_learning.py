"""Every learner on tasks of seconds: a cart-pole, and a chain whose cuts must be bootstrapped from.

`python benchmark/benchmark_learners.py` does the like with the train command, and takes the time.
"""

from __future__ import annotations

import pytest

from tests.learners.toy_training import (
    CHAIN_GAMMA,
    CHAIN_TOLERANCE,
    LEARNERS,
    SURVIVED,
    on_cart_pole,
    on_chain,
)
from tests.learners.toys import CartPole, best_action

# One seed in the fast tier, the others in the slow one.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LEARNERS)
def test_cart_pole_is_balanced_to_the_end(name: str, seed: int) -> None:
    before, after = on_cart_pole(name, seed)
    print(f"{name}: {before:.0f} steps, then {after:.0f}")
    assert before < 0.5 * CartPole.limit
    assert after >= SURVIVED * CartPole.limit


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_cut_hides_later_gains_unless_targets_bootstrap(
    name: str, truncates: bool, seed: int
) -> None:
    found = on_chain(name, seed, truncates=truncates)
    right, wrong = (best_action(CHAIN_GAMMA, truncates=kind) for kind in (truncates, not truncates))
    print(f"{name}: {found:.3f}, best {right:.3f}")
    if truncates:
        assert abs(found - right) <= CHAIN_TOLERANCE
    # The control only has to stay away from what bootstrapping alone can show.
    assert abs(found - right) < abs(found - wrong) > CHAIN_TOLERANCE
