"""The parent of one job, and the job's process until exec: rights, identity, inheritance.

Started by the launcher; outlives it and the controller.
"""
