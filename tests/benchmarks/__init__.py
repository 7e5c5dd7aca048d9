"""Ratios measured in one run: nothing here gates a test.

Each module is a program: ``python -m tests.benchmarks.NAME``.
"""
