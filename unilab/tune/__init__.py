"""`unilab tune`: measures a task with this machine's threads in many settings, and keeps the best.

`search` decides what to measure and what to choose, and knows no clock and no process; `probe` and
`worker` measure in a process of their own; `report` says it in words.
"""
