#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --output=hello_%j.log
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=100M
#SBATCH --time=00:05:00

echo "job $SLURM_JOB_ID named $SLURM_JOB_NAME on $(hostname)"
