"""Learners: torch only. They never import physics, tasks or the runtime."""
