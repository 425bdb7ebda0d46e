"""The root helper of the launcher of Slurm's nodes: the only one of the two that runs as root.

The launcher (`drfd.launcher.slurm`) reads what the controller orders and what Slurm shows, and has
no rights. What needs root's is done here: the helper runs Slurm's commands, of which it composes
every word, and submits only what the job's user has signed.
"""
