#!/bin/bash
#SBATCH --export=ALL,MODEL=large,SEED=7
#SBATCH --mem=64M
#SBATCH --time=UNLIMITED
##SBATCH --nodes=64
#SBATCH --output=own.out

#DRF -n drfs-own
echo "$MODEL $SEED $SLURM_NNODES"
#SBATCH --mem=900G
