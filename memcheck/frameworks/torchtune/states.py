"""Tensors that torchtune's models hold beside their parameters: rotary tables, as many as transformers' models."""

from __future__ import annotations

from memcheck.frameworks.transformers.states import rotary_caches, rotary_tables

__all__ = ["rotary_caches", "rotary_tables"]
