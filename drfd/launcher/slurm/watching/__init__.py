"""What is known of Slurm itself: its nodes, and the slurmctld that shows them."""
