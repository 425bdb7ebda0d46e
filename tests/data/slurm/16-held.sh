#!/bin/sh
#SBATCH -H
#SBATCH --nice=50
#SBATCH --mem=1G
#SBATCH --comment="later"
#SBATCH --exclusive
true
