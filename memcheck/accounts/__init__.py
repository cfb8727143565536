"""Bytes by component: local tensors, resident tensors, units, a step as a program, instants, estimates.

Imports jobs, models and autograd's curves; no framework.
"""
