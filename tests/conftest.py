"""Environment of all tests, set before a numerical library is loaded."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two idle pools must not spin on two cores
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # equal results on every machine
os.environ.setdefault("UNILAB_NO_TUNED", "1")  # what `unilab tune` wrote for this machine
