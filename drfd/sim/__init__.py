"""Simulation: the daemon's own core under a virtual clock. The daemon imports nothing of it."""
