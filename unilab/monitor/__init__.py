"""`unilab monitor`: what holds a run back, seen from outside.

It reads the files that a run writes, and the system's counters; it never talks to the run, so
ending the monitor cannot touch it.
"""
