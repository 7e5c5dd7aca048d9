"""Anybody's table of runs: read, checked, given this project's column names."""
