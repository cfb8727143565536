"""A plan's step in real PyTorch, traced or measured, against its estimate.

Imports any room but the commands; PyTorch only inside functions.
"""
