"""The engine around a framework's step: every rank, what the driver sees, host memory, the interval, the estimate.

Imports frameworks, which it asks through their ``Stack``, and the rooms before them; neither timing nor rules.
"""
