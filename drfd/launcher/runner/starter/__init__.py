"""The start of a job's process: a compiled program where there is one, else a fork of the runner.

Both do the same, step by step, and report failures in the same words; tests run both. The compiled
program (starter.c) costs a fraction of the other: it is begun without a copy of the runner's
memory, and touches no page of it.
"""
