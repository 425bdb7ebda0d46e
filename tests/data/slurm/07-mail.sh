#!/bin/bash
#SBATCH --mail-type=END,FAIL,TIME_LIMIT_80
#SBATCH --mail-user=somebody@example.org
#SBATCH --mem=64M
#SBATCH --time=30
true
