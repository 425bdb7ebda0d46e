"""Scripts and commands of people who know Slurm."""

#: Slurm's commands that there are here, and those for which there is a hint.
SLURM_NAMES = (
    *("sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "seff", "scontrol"),
)
HINTED = ("sprio", "sshare", "sstat")
