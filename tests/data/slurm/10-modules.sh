#!/bin/bash -l
#SBATCH -t 00:10:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=32M
#SBATCH -o modules.out

module load anaconda/2020-03
export OMP_PROC_BIND=true
srun python threads.py
