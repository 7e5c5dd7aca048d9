"""Synthetic worlds that play a grid: interval width, power, the cheapest design."""
