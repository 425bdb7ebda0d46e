#!/bin/bash
#SBATCH -J solve
#SBATCH -L solver@server:2
#SBATCH --mem=0
#SBATCH -c1
#SBATCH -t12:00:00
#SBATCH -w node[01-04]
#SBATCH --tmp=10G
echo solved
