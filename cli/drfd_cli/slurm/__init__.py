"""Scripts and commands of people who know Slurm."""

#: Slurm's commands that there are here.
SLURM_NAMES = (
    *("sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "seff", "scontrol"),
    *("sacctmgr", "sdiag", "sprio", "sshare", "sstat"),
)
