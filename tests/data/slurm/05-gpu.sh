#!/bin/bash
#SBATCH --job-name=train
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=2
#SBATCH --mem=200M
#SBATCH --time=0-02:00:00
#SBATCH --output=%x-%j.out

echo "devices $CUDA_VISIBLE_DEVICES"
