#!/bin/bash
#SBATCH --export=NONE
#SBATCH --get-user-env
#SBATCH --chdir=/tmp
#SBATCH --mem=64M
#SBATCH --output=/dev/null
cd "$SLURM_SUBMIT_DIR" && echo "${EDITOR-unset} $SLURM_JOB_ID" > environment.txt
