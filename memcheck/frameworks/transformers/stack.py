"""What the engine asks of transformers' Trainer: torch's data parallelism around its layers."""

from __future__ import annotations

from memcheck.frameworks.torch.stack import STACK as TORCH
from memcheck.frameworks.transformers.host import HOST

STACK = TORCH._replace(host=HOST)
