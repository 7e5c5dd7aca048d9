"""Checks that need a CUDA machine, run by hand; where there is none they run at a tiny shape."""
