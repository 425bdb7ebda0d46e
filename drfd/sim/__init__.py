"""Simulation: the daemon's own core under a virtual clock, for small problems and for traces.

`theory` and the comparison of policies are for simulations and tests; the daemon imports nothing
of this package.
"""
