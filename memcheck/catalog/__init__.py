"""Models and GPUs as data, found by name.

Imports nothing of plans, jobs or frameworks.
"""
