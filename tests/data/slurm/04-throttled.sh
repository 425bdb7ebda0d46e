#!/bin/bash
#SBATCH -a 0-8:2%2
#SBATCH --mem=64M
#SBATCH -t 5:30
FILES=(a b c d e f g h i)
echo "file ${FILES[$SLURM_ARRAY_TASK_ID]}" > "file_${SLURM_ARRAY_TASK_ID}.txt"
