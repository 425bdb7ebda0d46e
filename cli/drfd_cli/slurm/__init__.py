"""Scripts and commands of people who know Slurm."""

import os

#: Slurm's commands that there are here.
SLURM_NAMES = (
    *("sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "seff", "scontrol"),
    *("sacctmgr", "sdiag", "sprio", "sshare", "sstat"),
)


def host_name() -> str:
    """Return the name of this machine, which is the only node of its cluster."""
    return os.uname().nodename.partition(".")[0]
