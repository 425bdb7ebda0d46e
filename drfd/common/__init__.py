"""Modules that every package may use: errors, units, indices, paths, strict tables, the log.

Nothing here knows a job, a daemon or a launcher, and nothing imports a package above it.
"""
