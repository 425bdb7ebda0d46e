"""The launcher of nodes that Slurm looks after: orders become Slurm's commands, and Slurm's states
become reports.

Slurm decides nothing here: a job is submitted when drfd has admitted it and chosen its node, so
Slurm's queue is empty but for a moment. Neither an id of Slurm's nor an absence proves anything:
slurmctld forgets its last seconds when it is killed, and gives their ids to other jobs. A job is
known by its comment, INSTANCE.ID.ATTEMPT, and by the attempt file, which is written first.
"""
