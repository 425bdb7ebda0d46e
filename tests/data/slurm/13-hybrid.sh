#!/bin/bash
#####################
# MPI and threads   #
#####################

#SBATCH --job-name=hybrid

# two tasks with three cores each
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=3

# five minutes, d-hh:mm:ss
#SBATCH --time=0-00:05:00

#SBATCH --partition short
#SBATCH --mem-per-cpu=20MB   # for each core

echo "$SLURM_NTASKS x $SLURM_CPUS_PER_TASK"
