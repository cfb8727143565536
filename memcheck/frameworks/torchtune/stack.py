"""What the engine asks of torchtune: torch's data parallelism around its layers."""

from __future__ import annotations

from memcheck.frameworks.torch.stack import STACK as TORCH

STACK = TORCH
