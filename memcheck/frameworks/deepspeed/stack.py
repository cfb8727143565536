"""What the engine asks of DeepSpeed's engine: torch's data parallelism around its layers."""

from __future__ import annotations

from memcheck.frameworks.deepspeed.step import HOST
from memcheck.frameworks.torch.stack import STACK as TORCH

STACK = TORCH._replace(host=HOST)
