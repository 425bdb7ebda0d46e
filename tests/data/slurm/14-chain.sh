#!/bin/bash
#SBATCH --job-name=chain
#SBATCH --dependency=singleton
#SBATCH --time=2:00:00
#SBATCH --mem=64M
#SBATCH --requeue
#SBATCH --open-mode=append
echo "restarted ${SLURM_RESTART_COUNT:-0} times" >> chain.log
