#!/bin/bash
#SBATCH -c 2 -n3 --mem=4000 --mem-per-cpu=1.5GB -t 1-02:03:04 -a 0-9%2 -J name
#SBATCH --gres=gpu:a100:2,tape -G v100:1 -d afterok:1:2,afterany:3_4,singleton
#SBATCH -o %x-%4j.%N --signal=B:USR1@60 --nice --export=NONE,A=b --mail-type=ALL
true
