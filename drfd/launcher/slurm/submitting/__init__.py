"""From the order to a job in Slurm's queue."""
