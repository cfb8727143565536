"""Tensors that torchtune's models hold in addition to their parameters: rotary tables of all positions."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.frameworks.torchtune.layers import table_bytes, tables
from memcheck.models.types import Architecture


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Rows are picked from the model's table: a forward makes none."""
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Buffers of the rotary modules, whatever a step's length is."""
    return tables(architecture, layers, adapted=adapted) * table_bytes(architecture, sequence)
