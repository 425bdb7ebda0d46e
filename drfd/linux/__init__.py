"""Interfaces of Linux that Python's library lacks: the kernel, systemd, the user database.

System calls by ctypes, sealed files, socket peers, sd_notify. Nothing here knows a job.
"""
