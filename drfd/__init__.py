"""drfd: fair, enforced, explained batch jobs for one shared Linux workstation."""

__version__ = "0.1.0"
