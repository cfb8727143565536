"""Qianfan-OCR: InternVL's tower, whose layers are outside the module of the embeddings (modeling_qianfan_ocr.py)."""

from __future__ import annotations

from memcheck.frameworks.transformers.towers.internvl import project, stem

__all__ = ["project", "stem"]
