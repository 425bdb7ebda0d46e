"""Slurm as what starts jobs on other machines: the configuration that it needs for that."""
