"""Figures, each a pure data function and a draw function that neither filters nor fits."""
