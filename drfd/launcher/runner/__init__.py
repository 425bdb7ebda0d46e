"""The parent of one job, and the job's process until exec: rights, identity, inheritance.

Forked from the launcher; outlives it and the controller.
"""
