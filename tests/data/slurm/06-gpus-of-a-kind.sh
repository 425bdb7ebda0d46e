#!/bin/bash
#SBATCH --gpus=a100:2
#SBATCH --cpus-per-gpu=1
#SBATCH --mem-per-gpu=100M
#SBATCH --constraint='nvlink'
#SBATCH -t 1-0
echo "$SLURM_JOB_GPUS"
