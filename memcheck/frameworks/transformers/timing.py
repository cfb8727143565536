"""How long steps of transformers.Trainer take: as those of a plain PyTorch loop over the same model classes."""

from __future__ import annotations

from memcheck.frameworks.torch.timing import TIMING

__all__ = ["TIMING"]
