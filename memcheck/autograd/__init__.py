"""A small replay of PyTorch's autograd: storages with lifetimes, no data.

A framework's ``layers.py`` writes a module's forward pass with these operations; what each of them keeps for backward
and what its backward allocates is stated once, next to the operation, as ATen implements it. Lifetimes are Python's own
reference counts, as they are in the traced program: a tensor dies when the last local variable, autograd node or
gradient buffer lets go of it. Imports models' and jobs' records; no framework.
"""

from __future__ import annotations

from memcheck.autograd.engine import backward
from memcheck.autograd.tensor import BLOCK_BYTES, Dim, Node, Parameter, Storage, Tape, Value, rounded

__all__ = ["BLOCK_BYTES", "Dim", "Node", "Parameter", "Storage", "Tape", "Value", "backward", "rounded"]
