"""Buffers between the runtime and the learners: torch only."""
