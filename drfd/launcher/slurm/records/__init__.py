"""What this launcher writes down of attempts, or Slurm's event script does."""
