"""One folder per stack with the same names in each, and the registry that finds them.

Imports accounts, autograd, jobs and models; nothing of the engine in ``memory``, which asks a folder for its ``Stack``.
"""
