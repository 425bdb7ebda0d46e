"""Devices of this machine that jobs are given: device nodes, and how to find them.

Nothing here knows a job, a daemon or a launcher.
"""
