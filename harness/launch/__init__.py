"""Executors: each takes planned runs to finished records. A new executor is one new file."""
