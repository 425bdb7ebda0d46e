#!/bin/bash
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@60
#SBATCH --mem=64M
trap 'echo saved; exit 0' USR1
echo ready
