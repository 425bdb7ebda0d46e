#!/bin/bash
# A program with threads.
#SBATCH -J threads
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -c 2
#SBATCH --mem-per-cpu=50
#SBATCH -t 10
#SBATCH -o threads.out

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "threads: $OMP_NUM_THREADS, memory: $SLURM_MEM_PER_NODE"
