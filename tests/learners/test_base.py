from __future__ import annotations

import pytest
import torch

from tests.learners.support import SYMMETRY
from unilab.errors import ConfigError
from unilab.learners.base import LearnerSpec, Mirror


def test_mirror_permutes_then_signs_and_is_its_own_inverse() -> None:
    mirror = Mirror.from_lists([1, 0, 2], [-1, -1, 1])
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    assert mirror(x).tolist() == [[-2.0, -1.0, 3.0]]
    assert mirror(x).dtype == torch.float64
    assert torch.equal(mirror(mirror(x)), x)


@pytest.mark.parametrize(
    ("permutation", "sign", "words"),
    [
        ([0, 0], [1, 1], "not a permutation"),
        ([0, 2], [1, 1], "not a permutation"),
        ([0, 1], [1, 0.5], r"signs must be \+1 or -1"),
        ([1, 2, 0], [1, 1, 1], r"entries \[0, 1, 2\]"),
        ([1, 0, 2], [1, -1, 1], r"entries \[0, 1\]"),
        ([0, 1], [1], "both must be"),
    ],
)
def test_what_is_no_mirror_is_refused(permutation, sign, words) -> None:
    with pytest.raises(ConfigError, match=words):
        Mirror.from_lists(permutation, sign)


def test_spec_refuses_a_mirror_of_another_size_and_empty_vectors() -> None:
    with pytest.raises(ConfigError, match="mirror of obs has 5 entries, obs has 6"):
        LearnerSpec(6, 7, 3, SYMMETRY)
    with pytest.raises(ConfigError, match="action has 0 entries"):
        LearnerSpec(6, 7, 0)
