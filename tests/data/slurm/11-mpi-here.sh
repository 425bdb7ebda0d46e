#!/bin/bash
#SBATCH --nodes=1
#SBATCH --tasks-per-node=4
#SBATCH -p compute
#SBATCH -t 00:05:00
#SBATCH -J mpi
#SBATCH -o mpi-%j.out
#SBATCH -e mpi-%j.err
mpiexec ./simulate
