"""Limits of jobs: one interface, and a class for each kind of machine.

Nothing here starts a job's process or knows the controller.
"""
