"""Bytes by component: local tensors, what rests, units, a step as a program, instants, estimates.

Imports jobs, models and autograd's curves; no framework.
"""
