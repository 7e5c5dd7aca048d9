"""What the runs of generated tasks can compute: by arm and depth, and against the baseline."""
