"""Periodic measurements: usage of jobs, breaches of limits, free disk and memory."""
