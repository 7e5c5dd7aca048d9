"""Slurm as an executor: typed options, sbatch scripts, submission, and where each run stands."""
