"""Residual variants: one file per variant, and no other file changes to add one."""
