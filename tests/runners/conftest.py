"""Fixtures of all tests of the runners."""

from tests.runners.fixtures import finished, trained

__all__ = ["finished", "trained"]
