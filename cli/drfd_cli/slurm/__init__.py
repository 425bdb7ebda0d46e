"""Scripts and commands of people who know Slurm."""
