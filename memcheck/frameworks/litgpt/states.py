"""Tensors that LitGPT's models hold in addition to their parameters: rotary tables in fp32."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.frameworks.transformers.states import rotary_caches, tables
from memcheck.models.types import Architecture

__all__ = ["rotary_caches", "rotary_tables"]


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """cos and sin, buffers that are made anew in the default dtype."""
    return tables(architecture, setting, "fp32")
