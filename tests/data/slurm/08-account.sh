#!/bin/bash
#SBATCH --account=project_123
#SBATCH --partition=short
#SBATCH --qos=normal
#SBATCH --mem=64M
#SBATCH --time=00:01:00
echo "$SLURM_SUBMIT_DIR"
