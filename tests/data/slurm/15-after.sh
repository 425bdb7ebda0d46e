#!/bin/bash
#SBATCH --dependency=afterok:7:9,afterany:11
#SBATCH --begin=now+1hour
#SBATCH --mem=64M
#SBATCH --kill-on-invalid-dep=yes
true
